"""A builder of ONNX graphs in which nodes are used like arrays: `(x - mean) * gain` adds two nodes."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyadic._util.version import __version__
from polyadic.errors import PolyadicError

__all__ = ["IR", "OPSET", "Graph", "Node", "needed"]

OPSET, IR = 17, 8  # from 2022: runtimes on small devices are often old
_BINARY = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "truediv": "Div", "matmul": "MatMul", "and": "And", "or": "Or",
    "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual",
}  # fmt: skip
_LOGICAL = {"And", "Or", "Not", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "IsNaN", "IsInf"}


class Node(str):
    """The name of a node or constant, with the operators of numpy; numbers and arrays take its type."""

    graph: Graph
    dtype: np.dtype[Any]
    __array_ufunc__ = None  # an array on the left leaves the operation to the node

    def to(self, dtype: Any) -> Any:
        return self.graph.add("Cast", self, to=self.graph.kind(dtype))

    def __invert__(self) -> Any:
        return self.graph.add("Not", self)

    def apply(self, operator: str, *others: Any, **attributes: Any) -> Any:
        """Add a node of this one and others; numbers and arrays among them take its type."""
        return self.graph.add(operator, self, *(self._like(other) for other in others), **attributes)

    def sum(self, axis: int, keep: bool = True) -> Any:
        return self.graph.add("ReduceSum", self, self.graph.integers([axis]), keepdims=int(keep))

    def reduce(self, operator: str, axis: int, keep: bool = False) -> Any:
        return self.graph.add(f"Reduce{operator}", self, axes=[axis], keepdims=int(keep))

    def reshape(self, *shape: int) -> Any:
        return self.graph.add("Reshape", self, self.graph.integers(shape))

    def take(self, indices: ArrayLike, axis: int) -> Any:
        return self.graph.add("Gather", self, self.graph.integers(indices), axis=axis)

    def part(self, first: int, end: int, axis: int = 2) -> Any:
        return self.graph.add("Slice", self, *(self.graph.integers([bound]) for bound in (first, end, axis)))

    def unsqueeze(self, axis: int) -> Any:
        return self.graph.add("Unsqueeze", self, self.graph.integers([axis]))

    def row(self) -> Any:
        """Turn (N, n, 1) into (N, n)."""
        return self.graph.add("Squeeze", self, self.graph.integers([2]))

    def where(self, one: Any, other: Any) -> Any:
        """Select by this condition; at least one of the two is a node."""
        typed = one if isinstance(one, Node) else other
        return self.graph.add("Where", self, typed._like(one), typed._like(other))

    def _like(self, value: Any) -> Node:
        return value if isinstance(value, Node) else self.graph.constant(value, self.dtype)


def _set_operators(method: str, operator: str) -> None:
    setattr(Node, f"__{method}__", lambda self, other: self.graph.add(operator, self, self._like(other)))
    setattr(Node, f"__r{method}__", lambda self, other: self.graph.add(operator, self._like(other), self))


for _method, _operator in _BINARY.items():
    _set_operators(_method, _operator)


class Graph:
    """A graph under construction; every node is named after its output.

    centre : (channels,), levels near those of the channels, for the tensorizer; None if unknown
    """

    def __init__(self, centre: NDArray[Any] | None) -> None:
        self.centre, self.api = centre, needed("onnx")
        self.nodes: list[Any] = []
        self._count = 0
        self.constants: dict[tuple[str, tuple[int, ...], bytes], Any] = {}

    def kind(self, dtype: Any) -> int:
        return int(self.api.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def _node(self, name: str, dtype: Any) -> Node:
        node = Node(name)
        node.graph, node.dtype = self, np.dtype(dtype)
        return node

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind.lower()}{self._count}"

    def input(self, name: str) -> Any:
        return self._node(name, np.float32)

    def constant(self, values: ArrayLike, dtype: Any = None) -> Node:
        array = np.asarray(values, dtype, order="C")
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self.constants:
            self.constants[key] = self.api.numpy_helper.from_array(array, f"constant{len(self.constants)}")
        return self._node(self.constants[key].name, array.dtype)

    def integers(self, values: ArrayLike) -> Node:
        return self.constant(values, np.int64)

    def add(self, operator: str, *inputs: str, **attributes: Any) -> Any:
        name = self._name(operator)
        self.nodes.append(self.api.helper.make_node(operator, inputs, [name], name, **attributes))
        dtype = getattr(inputs[1 if operator == "Where" else 0], "dtype", np.float32)
        if operator == "Cast":
            dtype = self.api.helper.tensor_dtype_to_np_dtype(attributes["to"])
        return self._node(name, bool if operator in _LOGICAL else dtype)

    def pair(self, operator: str, *inputs: str, **attributes: Any) -> tuple[Node, Node]:
        """Add a node with two outputs."""
        first, second = (self._node(self._name(word), inputs[0].dtype) for word in ("first", "second"))  # type: ignore[attr-defined]
        self.nodes.append(self.api.helper.make_node(operator, inputs, [first, second], **attributes))
        return first, second

    def product(self, a: Node, b: Node, shared: str = "") -> Any:
        """Multiply aᵀb for each window; `shared` names the one, "a" or "b", that is the same for all windows."""
        # Older versions of onnxruntime fuse a transposition and a product to an operator that lacks float64.
        left, right = "ij" if shared == "a" else "nij", "ik" if shared == "b" else "nik"
        return self.add("Einsum", a, b, equation=f"{left},{right}->njk")

    def branches(
        self, condition: str, one: Callable[[], list[Node]], other: Callable[[], list[Node]], count: int
    ) -> list[Node]:
        """Add the nodes of one of two functions, by a condition, and return their `count` results, in float64."""
        names = [self._node(self._name("if"), np.float64) for _ in range(count)]
        bodies = {"then_branch": self._body(one, []), "else_branch": self._body(other, [])}
        self.nodes.append(self.api.helper.make_node("If", [condition], names, **bodies))
        return names

    def loop(self, count: int, step: Callable[..., list[Node]], *states: Any) -> list[Any]:
        """Add a loop of `count` steps, functions of the number (1,) and the states, and return the last states."""
        info = self.api.helper.make_tensor_value_info
        inputs = [self._node(self._name("state"), np.float64) for _ in states]
        number, condition = self._node(self._name("step"), np.int64), self._node(self._name("condition"), bool)

        def body() -> list[Node]:
            return [self.add("Identity", condition), *step(number.reshape(1), *inputs)]

        known = [info(name, self.kind(name.dtype), []) for name in (number, condition)]
        known += [info(name, self.kind(np.float64), None) for name in inputs]
        names = [self._node(self._name("loop"), np.float64) for _ in states]
        bounds = (self.integers(count), self.constant(True))
        self.nodes.append(self.api.helper.make_node("Loop", [*bounds, *states], names, body=self._body(body, known)))
        return names

    def _body(self, build: Callable[[], list[Node]], inputs: list[Any]) -> Any:
        """Return the nodes that a function adds as a graph of their own; constants stay in this one."""
        outside, self.nodes = self.nodes, []
        results = [
            self.api.helper.make_tensor_value_info(node, self.kind(node.dtype), [] if node.dtype == bool else None)
            for node in build()
        ]
        graph = self.api.helper.make_graph(self.nodes, self._name("body"), inputs, results)
        self.nodes = outside
        return graph

    def serialised(self, source: str, shape: Sequence[int], outputs: dict[str, tuple[Node, int]], known: Any) -> bytes:
        """Return the validated model as bytes; outputs are by name the node and its number of columns."""
        helper, kind = self.api.helper, self.kind(np.float32)
        for name, (node, _) in outputs.items():
            self.nodes.append(helper.make_node("Identity", [node], [name]))
        graph = helper.make_graph(
            self.nodes,
            "polyadic",
            [helper.make_tensor_value_info(source, kind, ["N", *shape])],
            [helper.make_tensor_value_info(name, kind, ["N", size]) for name, (_, size) in outputs.items()],
            list(self.constants.values()),
        )
        versions = {"opset_imports": [helper.make_opsetid("", OPSET)], "ir_version": IR}
        model = helper.make_model(graph, producer_name="polyadic", producer_version=__version__, **versions)
        helper.set_model_props(model, {"polyadic": json.dumps(known)})
        self.api.checker.check_model(model, full_check=True)
        return bytes(model.SerializeToString())


def needed(package: str, extra: str = "onnx") -> Any:
    """Import an optional package."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.partition(".")[0]
        raise PolyadicError(f"{name} is needed for this: pip install 'polyadic[{extra}]'") from error
