"""Functions that become tasks: whether they can, their names, which context they take, and whether a call fits them.

Promises that a function which could never work raises InvalidArgument where its task is defined. Risks: annotations
that are text are evaluated in the function's module. One that fails there is ignored, unless it looks like a context.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import traceback
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from pinlater.model.errors import InvalidArgument
from pinlater.tasks.context import BaseContext, Context, SyncContext

_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_CONTEXT_NAMES: Final = ("context", "ctx")
_CONTEXT_LIKE: Final = re.compile(r"(?:Context|Ctx)\b")
#: Stands for the context when a call is checked.
_A_CONTEXT: Final = object()


def check_function(what: str, function: Any) -> None:
    """Raises InvalidArgument for what can not be a task. what: the task, as errors name it."""
    if isinstance(function, staticmethod | classmethod):
        kind = type(function).__name__
        remedy = "" if kind == "classmethod" else ": put @staticmethod above @app.task"
        raise InvalidArgument(f"{what}: expected a function, got a {kind}{remedy}")
    if not callable(function):
        raise InvalidArgument(f"{what}: expected a function, got {function!r:.60}")
    for call in (function, getattr(function, "__call__", None)):  # noqa: B004
        if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
            raise InvalidArgument(
                f"{what}: expected a function that returns, got a generator function, whose call runs nothing of it"
            )
    first = next(iter(_parameters(function)), None)
    if first is not None and first.name in ("self", "cls"):
        raise InvalidArgument(
            f"{what}: expected a function, got a method: its first parameter is {first.name}, which no job passes; "
            "make it a function (a Context parameter gives it the job), or a @staticmethod"
        )


def task_name(function: Callable[..., Any]) -> str:
    """The default name of a task: module.function. Raises InvalidArgument for what has no name."""
    name = getattr(function, "__qualname__", None)
    if name is None:
        raise InvalidArgument(f"task: expected a function, or name=, got {function!r:.60}")
    return f"{module_name(getattr(function, '__module__', None) or '')}.{name}"


def module_name(module: str) -> str:
    """The name by which a worker imports a module. Of the program itself (`__main__`), the name of its file."""
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        return spec.name if spec is not None else Path(file).stem if file else module
    return module


def checked_modules(names: Iterable[str]) -> list[str]:
    """The names of modules, each once. Raises InvalidArgument."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidArgument(f"include: expected a list of module names, got {names!r:.60}")
    names = list(names)
    for name in names:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise InvalidArgument(f"include: expected module names like 'shop.emails', got {name!r:.60}")
    return list(dict.fromkeys(names))


def context_of(what: str, function: Callable[..., Any], is_async: bool) -> type[BaseContext] | None:
    """The context class that annotates the function's first parameter, or None. Raises InvalidArgument."""
    wanted = Context if is_async else SyncContext
    names = getattr(innermost_function(function), "__globals__", {})
    for position, parameter in enumerate(_parameters(function)):
        first = position == 0 and parameter.kind in _POSITIONAL
        try:
            kinds = list(_contexts(parameter.annotation, names))
        except Exception:  # evaluating the user's text may raise anything
            if first:
                _check_unknown(what, parameter, wanted)
            continue
        if kinds and not (first and wanted in kinds):
            got = f"{parameter.name}: {kinds[0].__name__}"
            raise InvalidArgument(f"{what}: expected its first parameter as a {wanted.__name__}, got {got}")
        if kinds:
            return wanted
    return None


def _check_unknown(what: str, parameter: inspect.Parameter, wanted: type[BaseContext]) -> None:
    """Raises InvalidArgument if an annotation that can not be evaluated looks like a context."""
    annotation = str(parameter.annotation)
    if parameter.name in _CONTEXT_NAMES or _CONTEXT_LIKE.search(annotation):
        raise InvalidArgument(
            f"{what}: its first parameter is {parameter.name}: {annotation}, which is not defined in its module; "
            f"expected {wanted.__name__}, or another type, imported at the top of the module (not under TYPE_CHECKING)"
        )


def _contexts(annotation: Any, names: dict[str, Any]) -> Iterator[type[BaseContext]]:
    """The context classes that an annotation names, members of unions included. Raises what its evaluation raises."""
    while isinstance(annotation, str | typing.ForwardRef):
        text = annotation if isinstance(annotation, str) else annotation.__forward_arg__
        annotation = eval(text, names)  # noqa: S307  (the function's own, as typing.get_type_hints does)
    if isinstance(annotation, type) and issubclass(annotation, BaseContext):
        yield annotation
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType, Annotated):
        members = typing.get_args(annotation)
        for member in members[:1] if origin is Annotated else members:
            yield from _contexts(member, names)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a function; of one that a decorator wrapped (functools.wraps), those of the inner function."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []  # a built-in without a signature


def innermost_function(function: Any) -> Any:
    """The function that the user wrote, inside of decorators, partials, methods and callable objects."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif inspect.ismethod(function):
            function = function.__func__
        elif not hasattr(function, "__code__") and hasattr(type(function).__call__, "__code__"):
            function = type(function).__call__
        else:
            return function


def never_fits(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    error: BaseException,
    *,
    injected: Collection[str] = (),
    context: bool = False,
) -> bool:
    """Whether the error says that the call does not fit the function's parameters, so that the function never started.

    injected: the names of arguments that the worker adds.
    context: whether the worker adds a context.
    """
    if type(error) is not TypeError:
        return False
    code = getattr(innermost_function(function), "__code__", None)
    if any(frame.f_code is code for frame, _ in traceback.walk_tb(error.__traceback__)):
        return False
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return False  # a built-in without a signature
    try:
        signature.bind(*[_A_CONTEXT] * context, *args, **kwargs, **dict.fromkeys(injected))
    except TypeError:
        return True
    return False
