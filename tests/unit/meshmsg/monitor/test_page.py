"""The files of the live page: all are there, and none runs what is not one of them."""

from __future__ import annotations

import re

from meshmsg.monitor.page import POLICY, page_answers


def test_the_page_has_all_that_it_names() -> None:
    page = page_answers()
    for answer in page.values():
        text = answer.body.decode()
        for path in re.findall(r'(?:src|href)="(/[^"]*)"|from "\./([^"]+)"', text):
            assert (path[0] or f"/{path[1]}") in page


def test_nothing_comes_from_elsewhere_and_nothing_stands_in_line() -> None:
    page = page_answers()
    assert set(page) >= {"/", "/page.css", "/page.js", "/icon.svg"}
    for path, answer in page.items():
        text = answer.body.decode()
        assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text), path
        assert not re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text
        )
        assert ("Content-Security-Policy", POLICY) in answer.headers
    html = page["/"].body.decode()
    assert not re.findall(r"<script(?![^>]*src=)| style=| on[a-z]+=|<style", html)


def test_the_policy_names_no_other_place() -> None:
    assert "unsafe" not in POLICY
    assert "http" not in POLICY
    assert POLICY.startswith("default-src 'none'")
