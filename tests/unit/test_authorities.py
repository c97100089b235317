"""Tests read the authorities' certificates once, and those that others name are still theirs."""

from __future__ import annotations

import httpx
from httpx._transports import default

from tests.support.authorities import read_authorities_once


def test_two_clients_share_one_reading():
    with read_authorities_once():
        assert default.create_ssl_context() is default.create_ssl_context()


def test_whoever_names_other_authorities_gets_those(monkeypatch, tmp_path):
    with read_authorities_once():
        usual = default.create_ssl_context()
        monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
        assert default.create_ssl_context() is not usual


def test_a_context_that_somebody_made_is_used_as_it_is():
    own = httpx.create_ssl_context(verify=False)
    with read_authorities_once():
        assert default.create_ssl_context(verify=own) is own
        assert default.create_ssl_context(verify=False) is not own
