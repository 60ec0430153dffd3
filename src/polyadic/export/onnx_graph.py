"""A builder of ONNX graphs in which nodes are used like arrays: `(x - mean) * gain` adds two nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyadic._util.packages import import_package
from polyadic._util.version import __version__

OPSET, _IR = 17, 8  # from 2022: runtimes on small devices are often old
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
        return self.graph.add(operator, self, *map(self._like, others), **attributes)

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
        self.centre, api = centre, import_package("onnx", "an ONNX file")
        self.helper, self._check, self._tensor = api.helper, api.checker.check_model, api.numpy_helper.from_array
        self.nodes: list[Any] = []
        self.constants: dict[tuple[str, tuple[int, ...], bytes], Any] = {}
        self._count = 0

    def kind(self, dtype: Any) -> int:
        """Return ONNX's number of a type."""
        return int(self.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def node(self, name: str, dtype: Any) -> Any:
        """Return a node that exists, by its name."""
        node = Node(name)
        node.graph, node.dtype = self, np.dtype(dtype)
        return node

    def _new(self, kind: str, dtype: Any) -> Any:
        self._count += 1
        return self.node(f"{kind.lower()}{self._count}", dtype)

    def constant(self, values: ArrayLike, dtype: Any = None) -> Any:
        array = np.asarray(values, dtype, order="C")
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self.constants:
            self.constants[key] = self._tensor(array, f"constant{len(self.constants)}")
        return self.node(self.constants[key].name, array.dtype)

    def integers(self, values: ArrayLike) -> Any:
        return self.constant(values, np.int64)

    def add(self, operator: str, *inputs: str, **attributes: Any) -> Any:
        dtype = getattr(inputs[1 if operator == "Where" else 0], "dtype", np.float32)
        if operator == "Cast":
            dtype = self.helper.tensor_dtype_to_np_dtype(attributes["to"])
        node = self._new(operator, bool if operator in _LOGICAL else dtype)
        self.nodes.append(self.helper.make_node(operator, inputs, [node], node, **attributes))
        return node

    def product(self, a: Node, b: Node, shared: str = "") -> Any:
        """Multiply aᵀb for each window; `shared` names the one, "a" or "b", that is the same for all windows."""
        # Older versions of onnxruntime fuse a transposition and a product to an operator that lacks float64.
        left, right = "ij" if shared == "a" else "nij", "ik" if shared == "b" else "nik"
        return self.add("Einsum", a, b, equation=f"{left},{right}->njk")

    def branches(
        self, condition: str, one: Callable[[], list[Node]], other: Callable[[], list[Node]], count: int
    ) -> list[Any]:
        """Add the nodes of one of two functions, by a condition, and return their `count` results, in float64."""
        results = [self._new("if", np.float64) for _ in range(count)]
        bodies = {"then_branch": self._body(one, []), "else_branch": self._body(other, [])}
        self.nodes.append(self.helper.make_node("If", [condition], results, **bodies))
        return results

    def loop(self, count: int, step: Callable[..., list[Node]], *states: Any) -> list[Any]:
        """Add a loop of `count` steps, functions of the number (1,) and the states, and return the last states."""
        inputs, results = ([self._new(kind, np.float64) for _ in states] for kind in ("state", "loop"))
        number, condition = self._new("step", np.int64), self._new("condition", bool)

        def body() -> list[Node]:
            return [self.add("Identity", condition), *step(number.reshape(1), *inputs)]

        graph = self._body(body, [number, condition, *inputs])
        bounds = self.integers(count), self.constant(True)
        self.nodes.append(self.helper.make_node("Loop", [*bounds, *states], results, body=graph))
        return results

    def _body(self, build: Callable[[], list[Node]], inputs: Sequence[Node]) -> Any:
        """Return the nodes that a function adds as a graph of their own; constants stay in this one."""
        outside, self.nodes = self.nodes, []
        known = [[self._described(node) for node in nodes] for nodes in (inputs, build())]
        graph = self.helper.make_graph(self.nodes, f"body{self._count}", *known)
        self.nodes = outside
        return graph

    def _described(self, node: Node, shape: Sequence[Any] | None = None, name: str = "") -> Any:
        scalar = node.dtype.kind in "ib"  # number and condition of a loop
        return self.helper.make_tensor_value_info(name or node, self.kind(node.dtype), [] if scalar else shape)

    def serialised(self, source: Node, shape: Sequence[int], outputs: dict[str, tuple[Node, int]], known: Any) -> bytes:
        """Return the validated model as bytes; outputs are by name the node and its number of columns."""
        for name, (node, _) in outputs.items():
            self.nodes.append(self.helper.make_node("Identity", [node], [name]))
        graph = self.helper.make_graph(
            self.nodes,
            "polyadic",
            [self._described(source, ["N", *shape])],
            [self._described(node, ["N", size], name) for name, (node, size) in outputs.items()],
            list(self.constants.values()),
        )
        versions = {"opset_imports": [self.helper.make_opsetid("", OPSET)], "ir_version": _IR}
        model = self.helper.make_model(graph, producer_name="polyadic", producer_version=__version__, **versions)
        self.helper.set_model_props(model, {"polyadic": json.dumps(known)})
        self._check(model, full_check=True)
        return bytes(model.SerializeToString())
