"""Test a service without sockets and sleeps: real peers in a simulated world, under a seed."""

from meshmsg import Peer, Stream
from meshmsg.testing import MemoryMesh

ADDRESS = "tcp://127.0.0.1:5000"  # of the simulated world: nothing of this machine is used
ORDERS = Stream("orders.**", durability="log", fsync="always")


def main() -> None:
    for seed in range(3):
        test_each_order_is_billed_though_the_shop_is_killed(seed)
    test_nothing_is_billed_while_the_network_is_cut()
    print("all tests passed")


def billing_service(bills: list[int]) -> None:
    """The program under test: it bills each order once."""
    with (
        Peer("billing", connect=ADDRESS) as peer,
        peer.subscribe("orders.**", start="earliest") as orders,
    ):
        for order in orders:
            bills.append(order.data)


def shop() -> Peer:
    """What the service talks to."""
    return Peer("shop", streams=[ORDERS], data_dir="data", bind=ADDRESS)


def test_each_order_is_billed_though_the_shop_is_killed(seed: int) -> None:
    bills: list[int] = []
    with MemoryMesh(seed, loss=0.1, jitter=0.01) as mesh:
        mesh.start(billing_service, bills, on="billing")
        before = shop().open()
        for order in range(50):
            before.publish("orders.new", order)
        mesh.kill("shop", power=True)  # of its disk, only what was synced is there
        mesh.sleep(3600)
        with shop() as after:
            after.publish("orders.new", 50)
            mesh.wait_until(lambda: bills == list(range(51)))
        print(f"seed {seed}: {len(bills)} bills after {mesh.now:,.0f} s of the mesh")


def test_nothing_is_billed_while_the_network_is_cut() -> None:
    bills: list[int] = []
    with MemoryMesh() as mesh, shop() as peer:
        mesh.start(billing_service, bills, on="billing")
        peer.wait_for_subscribers("orders.new", count=1, timeout=5)
        mesh.cut("shop", "billing")
        peer.publish("orders.new", 1)
        mesh.sleep(5)
        assert bills == []
        mesh.heal()
        mesh.wait_until(lambda: bills == [1])
        print("cut: the order was billed when the network was back")


if __name__ == "__main__":
    main()
