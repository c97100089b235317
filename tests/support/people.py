"""Accounts for tests, made through the API as anyone would."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

import httpx

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Person:
    account_id: str
    key: str
    email: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}


def sign_up(hub_url: str, name: str = "person") -> Person:
    email = f"{name}{next(_numbers)}@example.org"
    answer = httpx.post(f"{hub_url}/v1/accounts", json={"email": email, "name": name}, timeout=20)
    assert answer.status_code == 201, answer.text
    body = answer.json()
    return Person(body["account"]["id"], body["key"]["secret"], email)


def sign_in_operator(hub_url: str, hub_log: str) -> Person:
    """By the one-time link that the hub prints at its first start."""
    token = re.findall(r"sign-in\?token=([\w-]+)", hub_log)[0]
    answer = httpx.post(f"{hub_url}/v1/sign-in", json={"link_token": token}, timeout=20)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    return Person(body["account"]["id"], body["key"]["secret"], body["account"]["email"])
