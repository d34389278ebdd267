"""Errors cross process boundaries with their code, numbers and details."""

from __future__ import annotations

import json

import pytest
from exocli import errors
from exocli.errors import (
    BadRequest,
    Cancelled,
    ContextOverflow,
    ExoError,
    RemoteFailure,
    UsageError,
    WorkerDied,
    from_dict,
)

ALL = sorted(
    (cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, ExoError)),
    key=lambda cls: cls.__name__,
)


@pytest.mark.parametrize("cls", [cls for cls in ALL if cls is not RemoteFailure])
def test_every_error_survives_the_wire(cls: type[ExoError]) -> None:
    there = from_dict(json.loads(json.dumps(cls("One sentence.", rank=1, nothing=None).to_dict())))
    assert type(there) is cls and str(there) == there.message == "One sentence."
    assert there.details == {"rank": 1}
    assert (there.code, there.exit_code, there.http_status) == (cls.code, cls.exit_code, cls.http_status)


@pytest.mark.parametrize("details", [None, [], "words", 3])
def test_details_of_another_shape_are_none(details: object) -> None:
    assert from_dict({"code": "failed", "message": "No.", "details": details}).details == {}


def test_codes_name_one_class_each() -> None:
    codes = [cls.code for cls in ALL if cls is not RemoteFailure]
    assert len(set(codes)) == len(codes)


def test_the_exit_codes_are_the_contracts() -> None:
    by_code = {cls.__name__: cls.exit_code for cls in ALL}
    assert by_code["UsageError"] == 2
    unavailable = {"Unavailable", "BackendNotFound", "ModelNotFound", "ModelBroken", "OutOfMemory"}
    assert {name for name, code in by_code.items() if code == 3} == unavailable
    assert {code for name, code in by_code.items() if name not in {*unavailable, "UsageError"}} == {1}


def test_an_unknown_code_is_kept() -> None:
    error = from_dict({"code": "of_a_plugin", "message": "Odd.", "details": {"x": 1}})
    assert isinstance(error, RemoteFailure)
    assert error.to_dict() == {"code": "of_a_plugin", "message": "Odd.", "details": {"x": 1}}
    assert error.exit_code == 1 and ExoError.code == "failed" and RemoteFailure("x", "y").http_status == 500
    known = RemoteFailure("context_length_exceeded", "Too long.")
    assert known.http_status == ContextOverflow.http_status


@pytest.mark.parametrize("data", [{}, {"code": None}, {"details": None}, {"message": 3}])
def test_what_is_missing_does_not_hide_the_error(data: dict[str, object]) -> None:
    assert isinstance(from_dict(data), ExoError)


def test_a_detail_may_have_any_name() -> None:
    data = {"code": "worker_died", "message": "Gone.", "details": {"message": "inner", "self": 1, "code": 2}}
    error = from_dict(data)
    assert isinstance(error, WorkerDied) and error.to_dict() == data


def test_cancelled_escapes_an_except_exception() -> None:
    with pytest.raises(Cancelled, match="by hand"):
        try:
            raise Cancelled("by hand")
        except Exception:
            pytest.fail("a plugin's except Exception ate the cancel")


def test_kinds() -> None:
    assert issubclass(ContextOverflow, BadRequest) and not issubclass(UsageError, BadRequest)
