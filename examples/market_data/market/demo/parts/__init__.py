"""The demo's processes: each module has a `main(settings)`, which `market.demo.workers` starts."""
