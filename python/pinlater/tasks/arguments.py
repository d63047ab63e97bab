"""The arguments of a task: whether a call fits its function, and how each argument is written and comes back.

Promises that a call that can never run raises where it is enqueued, and that an argument comes back as its annotation
says, or is refused there. Risks: annotations that are text are evaluated at their first use, in the function's module.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

from pinlater._core import PlainCalls, is_plain_value
from pinlater.model.errors import InvalidArgument
from pinlater.tasks import envelope
from pinlater.tasks.batch_tasks import Item
from pinlater.tasks.conversion import (
    SAYS_NOTHING,
    Conversion,
    NotConvertible,
    conversion_of,
    no_function,
    unknown_annotation,
)
from pinlater.tasks.envelope import CARRIED, Codec
from pinlater.tasks.functions import innermost_function

_ANY_CALL: Final = inspect.Signature(
    [
        inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),
        inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
    ]
)


class WrongArgument(InvalidArgument):
    """An argument of a job is not what its annotation says, so no attempt can succeed."""


class ResultNotKept(InvalidArgument):
    """A return value that can not be kept. The function has done its work, so its job is not tried again."""


class Arguments:
    """What a task's function takes from its callers, and what it returns to them.

    what: the task, as errors name it.
    function: the task's function; None: it is in another program, so any call fits.
    codec: how arguments are packed.
    context: whether the worker passes a context as the first argument.
    injected: the parameters that the worker passes by name.
    batch: whether the function gets a list of items, so that a call has one argument.
    """

    def __init__(
        self,
        what: str,
        function: Callable[..., Any] | None,
        codec: Codec,
        *,
        context: bool = False,
        injected: Iterable[str] = (),
        batch: bool = False,
    ) -> None:
        self._what, self._function, self._injected = what, function, frozenset(injected)
        self._codec, self._batch = codec, batch
        self._binary = codec == "msgpack"
        self._whole = _signature(function)
        self._signature = _of_callers(self._whole, context, self._injected, batch)
        #: The calls that need no look at the function.
        self.calls = PlainCalls(self._binary)

    @property
    def signature(self) -> inspect.Signature:
        """What callers pass: the function's parameters without those that the worker passes."""
        return self._signature

    def plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        """The arguments of a call as the codec carries them.

        Raises TypeError for a call that does not fit the function. Raises InvalidArgument for an argument that cannot
        come back as its annotation says, or that the worker passes.
        """
        self._check(args, kwargs)
        if not self.convert:
            self.calls.fits(args, kwargs)
        return self.written(args, kwargs)

    def written(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Some of the arguments of a call, as the codec carries them; see plain(). They need not fit the function."""
        positional = self._names_of(len(args))
        return (
            [self._written(name, value) for name, value in zip(positional, args, strict=True)],
            {name: self._written(name, value) for name, value in kwargs.items()},
        )

    def _check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if passed := self._injected & kwargs.keys():
            names = ", ".join(sorted(passed))
            raise InvalidArgument(f"{self._what}: expected {names} from the worker, not from the caller")
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._what}: {error}; it takes {_shown(self._signature)}") from None

    @cached_property
    def convert(self) -> bool:
        """Whether any argument is converted. Most tasks convert none, and pay nothing."""
        return self._codec != "raw" and any(each.converts for each in self._conversions.values())

    @cached_property
    def returned(self) -> Conversion | None:
        """The conversion of results; None if their codec restores what the annotation says."""
        found = self._conversion_of(self._whole.return_annotation)
        return found if found.converts and self._codec != "raw" else None

    def restore(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a job as the annotations say. Raises WrongArgument."""
        positional = self._names_of(len(args))
        return (
            [self._restored(name, value) for name, value in zip(positional, args, strict=True)],
            {name: self._restored(name, value) for name, value in kwargs.items()},
        )

    def pack_result(self, value: Any) -> bytes:
        """A return value as bytes; see envelope.pack_result. Raises ResultNotKept."""
        written = value
        if self.returned is not None:
            with suppress(NotConvertible):  # the codec may pack it all the same
                written = self.returned.write(value)
        try:
            return envelope.pack_result(self._codec, written)
        except InvalidArgument as error:
            raise ResultNotKept(f"{error}{self._result_remedy(value)}") from None

    def _result_remedy(self, value: Any) -> str:
        """What would work in place of a return value that can not be packed, as the end of an error."""
        if self._codec == "raw":
            return ""
        found = self._conversion_of(self._whole.return_annotation)
        if found.annotation in SAYS_NOTHING:
            return f"; annotate the return type of the function with one that says what it is, or return {CARRIED}"
        try:
            found.write(value)
        except NotConvertible as error:
            return f"; {error}"
        return ""

    def read_result(self, packed: bytes) -> Any:
        """The value that pack_result packed, as the annotation says if that can be. Raises BodyUnreadable."""
        value = envelope.read_result(packed)
        if self.returned is not None:
            with suppress(NotConvertible):
                return self.returned.restore(value)
        return value

    def _written(self, name: str, value: Any) -> Any:
        conversion = self._conversion(name)
        if not conversion.converts and is_plain_value(value, self._binary):
            return value
        try:
            return conversion.write(value)
        except NotConvertible as error:
            raise InvalidArgument(f"{self._what}: argument {name}: {error}") from None

    def _restored(self, name: str, value: Any) -> Any:
        conversion = self._conversion(name)
        if not conversion.converts:
            return value
        try:
            return conversion.restore(value)
        except NotConvertible as error:
            raise WrongArgument(f"{self._what}: argument {name}: {error}") from None

    def _names_of(self, count: int) -> list[str]:
        """The names of the parameters that get so many arguments by position."""
        return self._positional[:count] + [self._rest[0]] * (count - len(self._positional))

    def _conversion(self, name: str) -> Conversion:
        return self._conversions.get(name) or self._conversions.get(self._rest[1]) or self._conversion_of(Any)

    @cached_property
    def _positional(self) -> list[str]:
        """The names of the parameters that take an argument by position."""
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return [each.name for each in self._signature.parameters.values() if each.kind in kinds]

    @cached_property
    def _rest(self) -> tuple[str, str]:
        """The names of the parameters that get the rest: by position, and by name. "": there is none."""
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        parameters = self._signature.parameters.values()
        first, second = (next((each.name for each in parameters if each.kind is kind), "") for kind in kinds)
        return first, second

    @cached_property
    def _conversions(self) -> dict[str, Conversion]:
        """By the names of parameters."""
        return {each.name: self._conversion_of(each.annotation) for each in self._signature.parameters.values()}

    def _conversion_of(self, annotation: Any) -> Conversion:
        if self._function is None:
            return no_function(self._binary)
        if annotation is inspect.Parameter.empty:
            return conversion_of(annotation, self._binary)
        try:
            found = _evaluated(annotation, self._function)
        except Exception:  # evaluating the user's text may raise anything
            return unknown_annotation(annotation, self._binary)
        return conversion_of(_of_item(found) if self._batch else found, self._binary)


def _signature(function: Callable[..., Any] | None) -> inspect.Signature:
    try:
        return _ANY_CALL if function is None else inspect.signature(function)
    except (TypeError, ValueError):  # a built-in without a signature
        return _ANY_CALL


def _of_callers(whole: inspect.Signature, context: bool, injected: frozenset[str], batch: bool) -> inspect.Signature:
    """The signature without what the worker passes."""
    parameters = [each for each in whole.parameters.values() if each.name not in injected]
    if context:
        del parameters[0]
    if batch and parameters:
        parameters = [parameters[0].replace(kind=inspect.Parameter.POSITIONAL_ONLY)]
    return inspect.Signature(parameters)


def _shown(signature: inspect.Signature) -> str:
    """The names of the parameters, and their defaults."""
    parameters = signature.parameters.values()
    return str(inspect.Signature([each.replace(annotation=inspect.Parameter.empty) for each in parameters]))


def _evaluated(annotation: Any, function: Callable[..., Any]) -> Any:
    """The type that an annotation, or text in it, names in the function's module. Raises what the evaluation raises."""
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    names = getattr(innermost_function(function), "__globals__", {})
    return typing.get_type_hints(holder, names, include_extras=True)["it"]


def _of_item(annotation: Any) -> Any:
    """T of `list[Item[T]]`, what a batch task gets."""
    items = typing.get_args(annotation)
    return typing.get_args(items[0])[0] if items and typing.get_origin(items[0]) is Item else Any


#: Of a task that is not known here.
UNKNOWN: Final = Arguments("the task", None, "msgpack")
