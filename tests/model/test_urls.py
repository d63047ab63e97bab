"""Server URLs in messages.

Promises: no part of a password is shown, however the URL is broken. A URL without a password is shown.
"""

from __future__ import annotations

import pytest

from pinlater.model.urls import hide_urls, hide_user, shown_url

#: URLs with a password, broken as people break them, and what is shown of each.
WITH_PASSWORDS = {
    "redis://:CANARY@host:6379/0": "redis://***@host:6379/0",
    "redis://user:CANARY@[::1]:6379": "redis://***@[::1]:6379",
    "redis://CANARY@host": "redis://***@host",
    "redis://:CAN@ARY@host": "redis://***@host",
    "redis://:CAN/ARY@host": "redis://***",
    "redis://:CAN#ARY@host": "redis://***",
    "redis://:CAN?ARY@host": "redis://***",
    "redis://:CAN?AR=Y@host": "redis://***",
    "redis://:1?AR=Y@CANARY@host": "redis://***",
    "redis://:12/CANARY@host": "redis://***",
    "redis://:CANARY": "redis://***",
    "redis://:CANARY@one,redis://:CANARY@two": "redis://***",
    "redis://one,redis://:CANARY": "redis://***",
    "redis://host?password=CANARY": "redis://host?***",
    "redis://host?Password=CANARY": "redis://host?***",
    "redis://host?pass%77ord=CANARY": "redis://host?***",
    "redis://host?password=CAN@ARY": "redis://***",
    "redis://host?password=CAN#ARY": "redis://host?***",
    "redis://host#CANARY": "redis://host#***",
    "embedded://./data,redis://:CANARY@host": "embedded://***",
    "unix://:CANARY@/run/redis.sock": "unix://***@/run/redis.sock",
    "unix:///run/redis.sock?password=CANARY": "unix:///run/redis.sock?***",
    "mysql://user:CANARY@host:3306/jobs": "mysql://***@host:3306/jobs",
    "mysql://user:CANARY@host/jobs?ssl_ca_certs=CANARY": "mysql://***@host/jobs?***",
    "mysql://user:CANARY@/jobs?unix_socket=CANARY": "mysql://***@/jobs?***",
    "mysql://user:CAN/ARY@host/jobs": "mysql://***",
    "mysql://user:12/CANARY": "mysql://***",
    "mysql://user:CANARY": "mysql://***",
    "mysql://host/a/CANARY": "mysql://***",
    "rediss//:CANARY@host": "(a malformed URL)",
    "redis:/:CANARY@host": "(a malformed URL)",
    "CANARY": "(a malformed URL)",
    "1=redis://:CANARY@host": "(a malformed URL)",
    "redis://:CAN\nARY@host": "redis://***@host",
    "redis://[CANARY@host": "redis://***",
    "redis://[CANARY]": "redis://***",
    "redis://host:1/0&password=CANARY": "redis://***",
    "redis://host/0;password=CANARY": "redis://***",
    "redis://host/password=CANARY": "redis://***",
    "redis://host/0:CANARY": "redis://***",
    "redis://host/CANARY": "redis://***",
    "redis://host:1:CANARY": "redis://***",
    "redis://host&password=CANARY": "redis://***",
    "redis://host;password=CANARY": "redis://***",
    "redis://host\\:CANARY": "redis://***",
    "unix:///tmp/x;password=CANARY": "unix://***",
    "unix:///tmp/x&password=CANARY": "unix://***",
    "embedded://:CANARY": "embedded://***",
    "embedded://./x&password=CANARY": "embedded://***",
    "embedded://./x?private&password=CANARY": "embedded://./x?***",
}


@pytest.mark.parametrize(("url", "shown"), WITH_PASSWORDS.items())
def test_no_part_of_a_password_is_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize("url", [each for each in WITH_PASSWORDS if "//" in each and "\n" not in each])
def test_no_part_of_a_password_is_shown_in_a_text(url: str) -> None:
    for text in (f"got {url!r}, twice: {url}; a@b", f"error: {url}."):
        hidden = hide_urls(text)
        assert not any(part in hidden for part in ("CAN", "ARY")), hidden
        assert hide_urls(hidden) == hidden


@pytest.mark.parametrize("line_break", ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x85", "\u2028", "\u2029"])
def test_no_part_of_a_password_with_line_breaks_is_shown_in_a_text(line_break: str) -> None:
    for password in (f":CAN{line_break}ARY", f"user:CAN{line_break}A{line_break}ARY"):
        url = f"redis://{password}@host"
        for text in (f"got {url}", f"got {url!r}", f"one\nerror: {url}: not reached\nthree"):
            assert not any(part in hide_urls(text) for part in ("CAN", "ARY")), text
    apart = f"redis://one: lost{line_break}mail a@b"
    assert hide_urls(apart) == apart


def test_a_refusal_does_not_name_our_user() -> None:
    refusal = "NOPERM User {} has no permissions to run the 'sadd' command"
    assert hide_user(refusal.format("CANARY")) == refusal.format("***")
    assert hide_user(refusal.format("default")) == refusal.format("default")


@pytest.mark.parametrize(
    "url", ["redis://h", "redis://127.0.0.1:6379/0", "rediss://a.b:1", "unix:///run/a.sock", "embedded://./my data"]
)
def test_a_url_without_a_password_is_shown(url: str) -> None:
    assert shown_url(url) == url
    assert hide_urls(f"server {url}: not reached") == f"server {url}: not reached"


def test_another_type_is_named() -> None:
    assert (shown_url(5), shown_url(None), shown_url(b"redis://:CANARY@h")) == ("5", "None", "a bytes")
