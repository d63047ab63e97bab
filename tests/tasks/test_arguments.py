"""Arguments: a call that does not fit is refused where it is made, and values come back as annotations say.

Promises are tried with both codecs, in this process (immediate mode), in a worker with a real server, and in a task
process. Risk: the list of types is msgspec's, so only those that docs/tasks.md names are here.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import inspect
import json
import pathlib
import uuid
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypedDict

import msgpack
import pydantic
import pytest

from pinlater import InvalidArgument, Item, PinLater, State, SyncContext
from pinlater.running.app_worker import worker_of
from pinlater.tasks.app import parts_of
from pinlater.tasks.envelope import Codec
from tests.support.handlers_for_tests import on_loop

NOW = datetime.datetime(2026, 11, 22, 18, 56, 2, 123456)
ID = uuid.UUID("5b0f7a3c-9d1e-4c8b-8a52-0d8f6e1c2b3a")
HOUR_EAST = datetime.timezone(datetime.timedelta(hours=1))


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 2


class Point(NamedTuple):
    x: int
    day: datetime.date


class Address(TypedDict):
    id: uuid.UUID


@dataclasses.dataclass
class Line:
    price: Decimal
    parts: list[Line]


@dataclasses.dataclass
class Order:
    id: uuid.UUID
    lines: dict[str, Line]
    color: Color | None = None


class Customer(pydantic.BaseModel):
    id: uuid.UUID
    since: datetime.datetime


class Pet(pydantic.BaseModel):
    name: str = "rex"


class Dog(Pet):
    bark: int


class Home(pydantic.BaseModel):
    pets: list[Pet]


class Kennel(pydantic.BaseModel):
    pets: list[Dog | Pet]


@dataclasses.dataclass
class Base:
    a: int


@dataclasses.dataclass
class Sub(Base):
    b: int = 2


@dataclasses.dataclass
class Bases:
    all: dict[str, list[Base]]


class Login(pydantic.BaseModel):
    secret: pydantic.SecretStr


class Hidden(pydantic.BaseModel):
    count: int = pydantic.Field(default=7, exclude=True)


class Loose(pydantic.BaseModel):
    any: Any


class Measure(pydantic.BaseModel):
    value: float


class Private(pydantic.BaseModel):
    _token: str = pydantic.PrivateAttr("new")

    def using(self, token: str) -> Private:
        self._token = token
        return self


class Aliased(pydantic.BaseModel):
    a: int = pydantic.Field(alias="A")


class Apart(pydantic.BaseModel, extra="forbid"):
    """Its names, what it reads and what it writes are three."""

    a: int = pydantic.Field(validation_alias=pydantic.AliasPath("A", "a"))
    b: int = pydantic.Field(0, serialization_alias="B")


class Site(pydantic.BaseModel):
    """Its defaults are text, which pydantic does not convert."""

    url: pydantic.HttpUrl = "https://x.test/"  # type: ignore[assignment]
    tags: frozenset[str] = []  # type: ignore[assignment]


class Either(pydantic.BaseModel):
    price: Decimal | str


CYCLE = Bases({"x": []})
CYCLE.all["x"].append(CYCLE)  # type: ignore[arg-type]


class Mixed(enum.Enum):
    TEXT = "text"
    INT = 2


@dataclasses.dataclass
class Made:
    a: int
    of: dataclasses.InitVar[int] = 1


class Computed(pydantic.BaseModel, extra="forbid"):
    side: int

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> int:
        return self.side**2


class WithJson(pydantic.BaseModel):
    values: pydantic.Json[list[int]]


class Strict(pydantic.BaseModel, strict=True):
    id: uuid.UUID
    pair: tuple[int, int]


class Data(pydantic.BaseModel):
    data: bytes


class Base64Data(pydantic.BaseModel, ser_json_bytes="base64", val_json_bytes="base64"):
    data: bytes


class Extra(pydantic.BaseModel, extra="allow"):
    a: int = 1


class Plain:
    """No type that can be written."""


ORDER = Order(ID, {"a": Line(Decimal("1.50"), [Line(Decimal(2), [])])}, Color.RED)
COME_BACK = [
    (uuid.UUID, ID),
    (Decimal, Decimal("1.50")),
    (datetime.date, NOW.date()),
    (datetime.time, NOW.time()),
    (datetime.datetime, NOW),
    (datetime.datetime, NOW.replace(tzinfo=datetime.UTC)),
    (datetime.timedelta, datetime.timedelta(days=-1, microseconds=3)),
    (Color, Color.RED),
    (Level, Level.HIGH),
    (Order, ORDER),
    (Address, {"id": ID}),
    (Point, Point(1, NOW.date())),
    (set[int], {1, 2}),
    (frozenset[Color], frozenset([Color.RED])),
    (tuple[int, str], (1, "a")),
    (tuple, (1, 2)),
    (bytes, b"\xff\0"),
    (Customer, Customer(id=ID, since=NOW)),
    (list[Customer] | None, [Customer(id=ID, since=NOW)]),
    (Sub, Sub(1)),
    (Bases, Bases({"x": [Base(1)]})),
    (Home, Home(pets=[Pet()])),
    (Kennel, Kennel(pets=[Dog(bark=3), Pet()])),
    (Loose, Loose(any={"a": [1, None, 2.5]})),
    (Private, Private().using("new")),
    (Aliased, Aliased(A=1)),
    (Either, Either(price="a")),
    (Apart, Apart(A={"a": 1}, b=2)),  # type: ignore[call-arg]
    (Computed, Computed(side=2)),
    (WithJson, WithJson.model_validate({"values": "[1, 2]"})),
    (Strict, Strict(id=ID, pair=(1, 2))),
    (Data, Data(data=b"text")),
    (Base64Data, Base64Data(data=b"\xff\0")),
    (Extra, Extra(b="more")),  # type: ignore[call-arg]
    (list[uuid.UUID | None], [ID, None]),
    (dict[uuid.UUID, list[Color]], {ID: [Color.RED]}),
    (dict[Level, tuple[int, ...]], {Level.HIGH: (1, 2)}),
    (int | None, None),
    (Literal["a", "b"], "a"),
    (dict[str, Any], {"a": [1, None, 2.5]}),
    (None, {"a": [1, None, 2.5]}),
]


def echo(app: PinLater, annotation: Any, codec: Codec = "msgpack") -> Any:
    """A task that returns its argument. annotation: of both; None: there is none."""

    def function(x: Any) -> Any:
        received.append(x)
        return x

    function.__annotations__ = {} if annotation is None else {"x": annotation, "return": annotation}
    return app.task(name=f"t{len(app.tasks)}", codec=codec, result_ttl=60)(function)


received: list[Any] = []


@pytest.fixture
def app() -> Iterator[PinLater]:
    received.clear()
    immediate = PinLater("redis://127.0.0.1:1")  # where nobody is
    with immediate.immediate():
        yield immediate


@pytest.mark.parametrize("codec", ["msgpack", "json"])
@pytest.mark.parametrize(
    ("annotation", "value"), COME_BACK, ids=[f"{i}-{a!r:.30}" for i, (a, _) in enumerate(COME_BACK)]
)
def test_a_value_comes_back_as_the_annotation_says(app: PinLater, annotation: Any, value: Any, codec: Codec) -> None:
    handle = echo(app, annotation, codec).enqueue(value)
    assert received == [value]
    assert type(received[0]) is type(value)
    result = handle.result()
    assert result == value
    assert type(result) is type(value)


def test_a_zone_is_kept_within_a_type_that_is_written_as_text(app: PinLater) -> None:
    echo(app, list[datetime.datetime]).enqueue([NOW.replace(tzinfo=HOUR_EAST)])
    assert received[0][0].utcoffset() == datetime.timedelta(hours=1)


REFUSED = [
    (None, ID, "a UUID cannot come back: its parameter has no annotation that says the type; add one, or pass text"),
    (None, (1, 2), "a tuple cannot come back: its parameter has no annotation"),
    (None, [{"a": {1}}], "a list cannot come back: its parameter has no annotation"),
    (Any, Color.RED, "a Color cannot come back"),
    (object, NOW.date(), "a date cannot come back"),
    (dict[str, Any], {"a": ID}, "would come back as .*: dict.* does not say the type"),
    (list, [(1, 2)], r"\[0\]: \(1, 2\) would come back as \[1, 2\]: list does not say the type"),
    (Plain, Plain(), "a Plain cannot come back: Plain is no type that can be written; a dataclass is, or an id"),
    (list[Plain], [Plain()], "Plain is no type that can be written"),
    (uuid.UUID | str, ID, "a UUID cannot come back: Type unions may not contain more than one str-like type"),
    ("Fraction", ID, "its annotation 'Fraction' is not defined in its module"),
    (int, ID, "expected int, got '5b0f7a3c-"),
    (datetime.date, "yesterday", "expected datetime.date, got 'yesterday'"),
    (datetime.date, NOW, "expected datetime.date, got '2026-11-22T18:56:02.123456'"),
    (set[int], {"a"}, "expected set.int., got .*Expected `int`, got `str`"),
    (Base, Sub(1), "a Sub would come back as a Base; annotate it as Sub"),
    (Bases, Bases({"x": [Base(1), Sub(1)]}), r"\.all\['x'\]\[1\]: a Sub would come back as a Base; annotate .* as Sub"),
    (Pet, Dog(bark=3), "a Dog would come back as a Pet; annotate it as Dog"),
    (list[Pet], [Dog(bark=3)], r"\[0\]: a Dog would come back as a Pet; annotate .*\[0\] as Dog"),
    (Home, Home(pets=[Pet(), Dog(bark=3)]), r"\.pets\[1\]: a Dog would come back as a Pet; annotate .* as Dog"),
    (Bases, {"all": {"x": [Sub(1)]}}, r"\['all'\]\['x'\]\[0\]: a Sub would come back as a Base"),
    (
        Login,
        Login(secret=pydantic.SecretStr("s")),
        r"\.secret: SecretStr.* would come back as another value; give it a",
    ),
    (Hidden, Hidden(count=9), r"\.count: 9 would come back as 7; give it a type or a serializer that keeps it"),
    (Loose, Loose(any=Decimal(1)), r"\.any: Decimal\('1'\) would come back as '1'; give it a type"),
    (Loose, Loose(any=(1, 2)), r"\.any: \(1, 2\) would come back as \[1, 2\]; give it a type"),
    (Loose, Loose(any=Level.HIGH), r"\.any: <Level.HIGH: 2> would come back as 2; give it a type"),
    (Private, Private().using("old"), r"\._token: 'old' would come back as 'new'"),
    (Data, Data(data=b"\xff"), "cannot be written .*set ser_json_bytes='base64' and val_json_bytes='base64'"),
    (Address, {"id": ID, "more": 1}, "would come back as {'id': UUID.*}; give it a type"),
    (pathlib.Path, pathlib.Path("a"), r"Path is no type that can be written; pass str\(path\)"),
    (Iterable[int], (1, 2), "Iterable is no type that can be written; a list is"),
    (Decimal | str, Decimal(1), "annotate it as one of them, or as a dataclass that has a field for each"),
    (Mixed, Mixed.TEXT, "give the Enum values that are all text or all int, or pass its name"),
    (Either, Either(price="1.0"), r"\.price: '1.0' would come back as Decimal\('1.0'\)"),
    (Bases, CYCLE, "a Bases is nested too deeply, or contains itself"),
    (Made, Made(1), "make them fields, or pass what the dataclass is made of"),
    (Customer, {"id": "x", "since": "y"}, "expected .*Customer, got .*2 validation errors"),
]


@pytest.mark.parametrize("codec", ["msgpack", "json"])
@pytest.mark.parametrize(("annotation", "value", "said"), REFUSED, ids=[f"{i}" for i in range(len(REFUSED))])
def test_what_cannot_come_back_is_refused_at_the_enqueue(
    app: PinLater, annotation: Any, value: Any, said: str, codec: Codec
) -> None:
    task = echo(app, annotation, codec)
    with pytest.raises(InvalidArgument, match=f"^task 't0': argument x: .*{said}"):
        task.enqueue(value)
    with pytest.raises(InvalidArgument, match=f"^task 't0': argument x: .*{said}"):
        task.enqueue_many([task.args(x=value)])
    assert received == []


def test_plain_values_pass_where_the_annotation_cannot_be_used(app: PinLater) -> None:
    for annotation in (Plain, uuid.UUID | str, "Fraction"):
        echo(app, annotation).enqueue("text")
    assert received == ["text"] * 3


def test_the_document_of_a_type_passes_for_it(app: PinLater) -> None:
    """As `pinlater task send` and other languages write it: the annotation says what becomes of it."""
    documents: list[tuple[Any, Any, Any]] = [
        (uuid.UUID, str(ID), ID),
        (set[int], [1, 1], {1}),
        (Base, {"a": 1, "more": 2}, Base(1)),
        (Order, {"id": ID, "lines": {}}, Order(ID, {})),
        (Aliased, {"A": 1}, Aliased(A=1)),
        (Aliased, {"a": 1}, Aliased(A=1)),
        (Site, Site(), Site.model_validate({"url": "https://x.test/", "tags": []})),
        (Order, Order(str(ID), {}), Order(ID, {})),  # type: ignore[arg-type]
        (list[int], (1, 2), [1, 2]),
        (frozenset[uuid.UUID], {ID}, frozenset([ID])),
    ]
    for annotation, value, _ in documents:
        echo(app, annotation).enqueue(value)
    assert received == [expected for _, _, expected in documents]


def test_no_number_comes_back_within_a_type(app: PinLater) -> None:
    echo(app, list[Decimal]).enqueue([Decimal("NaN")])
    echo(app, Measure).enqueue(Measure(value=float("nan")))
    assert received[0][0].is_nan()
    assert received[1].value != received[1].value


def test_no_number_within_a_type_is_refused_in_json(app: PinLater) -> None:
    task = echo(app, Measure, "json")
    with pytest.raises(InvalidArgument, match=r"argument x: expected .*Measure, got {'value': None}") as caught:
        task.enqueue(Measure(value=float("inf")))
    assert type(caught.value) is InvalidArgument, "so it is not the worker's WrongArgument"


def test_each_kind_of_parameter_converts(app: PinLater) -> None:
    calls: list[Any] = []

    @app.task
    def task(a: uuid.UUID, /, b: uuid.UUID, *rest: datetime.date, c: Color = Color.RED, **more: Decimal) -> None:
        calls.append((a, b, rest, c, more))

    day = NOW.date()
    task.enqueue(ID, ID, day, day, c=Color.RED, d=Decimal(1))
    task.enqueue(ID, b=ID)
    assert calls == [(ID, ID, (day, day), Color.RED, {"d": Decimal(1)}), (ID, ID, (), Color.RED, {})]


def test_an_item_of_a_batch_converts(app: PinLater) -> None:
    @app.task(batch=2, batch_wait=0.0)
    def task(items: list[Item[Order]]) -> None:
        received.extend(item.value for item in items)

    task.enqueue(ORDER)
    assert received == [ORDER]


def test_a_result_that_does_not_fit_its_annotation_is_kept_all_the_same(app: PinLater) -> None:
    @app.task(result_ttl=60)
    def task() -> datetime.date:
        return "no date"  # type: ignore[return-value]

    assert task.enqueue().result() == "no date"


UNPACKABLE = [
    (inspect.Signature.empty, Decimal(1), "annotate the return type of the function with one that says what it is, or"),
    (Any, Decimal(1), "annotate the return type of the function"),
    (int, Decimal("1.5"), "expected int, got '1.5'"),
    (dict[str, Any], {"a": ID}, "would come back as .*: dict.* does not say the type"),
    (Plain, Plain(), "a Plain cannot come back: Plain is no type that can be written; a dataclass is, or an id"),
    ("Fraction", ID, "its annotation 'Fraction' is not defined in its module"),
]


@pytest.mark.parametrize(("annotation", "value", "said"), UNPACKABLE, ids=[f"{i}" for i in range(len(UNPACKABLE))])
def test_a_result_that_cannot_be_packed_says_what_would_work(
    app: PinLater, annotation: Any, value: Any, said: str
) -> None:
    calls: list[int] = []

    def function() -> Any:
        calls.append(1)
        return value

    function.__annotations__ = {} if annotation is inspect.Signature.empty else {"return": annotation}
    task = app.task(result_ttl=60, backoff=0)(function)
    with pytest.raises(InvalidArgument, match=f"^result: it can not be packed as msgpack: can not serialize .*{said}"):
        task.enqueue()
    assert len(calls) == 1, "it has done its work, so it does not run again"


WRONG_CALLS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda task: task.enqueue(), "missing a required argument: 'a'"),
    (lambda task: task.enqueue(1, 2, 3), "too many positional arguments"),
    (lambda task: task.enqueue(1, c=2), "got an unexpected keyword argument 'c'"),
    (lambda task: task.enqueue(1, a=2), "multiple values for argument 'a'"),
    (lambda task: task.enqueue_many([task.args(1), task.args()]), "missing a required argument: 'a'"),
    (lambda task: task.enqueue_many([(1, 2, 3)]), "too many positional arguments"),
    (lambda task: task.using(priority=2).enqueue(), "missing a required argument: 'a'"),
]


@pytest.mark.parametrize(("call", "said"), WRONG_CALLS)
def test_a_call_that_does_not_fit_is_a_type_error(call: Callable[[Any], Any], said: str) -> None:
    app = PinLater("redis://nobody:1")  # nothing is sent

    @app.task(name="t")
    def task(context: SyncContext, a: int, b: str = "x") -> None: ...

    for _ in range(2):
        with pytest.raises(TypeError, match=rf"^task 't': {said}; it takes \(a, b='x'\)$"):
            call(task)


@on_loop
async def test_a_call_that_does_not_fit_is_a_type_error_in_async_code() -> None:
    app = PinLater("redis://nobody:1")

    @app.task(name="t")
    async def task(*, a: int) -> None: ...

    with pytest.raises(TypeError, match="task 't': missing a required argument: 'a'"):
        await task.aenqueue()  # type: ignore[call-arg]


def test_many_shapes_of_calls(app: PinLater) -> None:
    @app.task
    def task(**values: int) -> None:
        received.append(values)

    calls = [{f"a{i}": i} for i in range(40)]
    for _ in range(2):
        for call in calls:
            task.enqueue(**call)
    assert received == calls * 2


@on_loop
async def test_a_worker_fails_a_job_whose_argument_is_wrong_at_once() -> None:
    async with PinLater("memory://test_arguments") as app, PinLater("memory://test_arguments") as other:
        app.task(name="t", attempts=5)(_takes_an_order)
        handle = await other.asend("t", {"id": "no id", "lines": {}})  # it does not know the function
        async with worker_of(app) as worker:
            await worker.run(burst=True)
        info = await handle.ainfo()
    assert info is not None
    assert (info.state, info.attempts_remaining) == (State.FAILED, 0)
    assert "argument order: expected tests.tasks.test_arguments.Order, got {'id': 'no id'" in info.status


def _takes_an_order(order: Order) -> None: ...


def test_another_language_can_write_them(app: PinLater) -> None:
    """The documents of docs/tasks.md, as any msgpack or JSON library writes them."""

    @app.task(name="m")
    def by_msgpack(order: Order, day: datetime.date) -> None:
        received.append((order, day))

    @app.task(name="j", codec="json")
    def by_json(order: Order, day: datetime.date) -> None:
        received.append((order, day))

    order = {"id": str(ID), "lines": {"a": {"price": "1.50", "parts": [{"price": "2", "parts": []}]}}, "color": "red"}
    bodies = [
        b"\xfe\1\1\1m" + msgpack.packb([[order, "2026-11-22"]]),
        b"\xfe\1\2\1j" + json.dumps([[order], {"day": "2026-11-22"}]).encode(),
    ]
    client = parts_of(app).clients.blocking("test")
    client.create_queue("default")
    client.enqueue_many("default", bodies)
    app.close()
    assert received == [(ORDER, NOW.date())] * 2
