"""Cuts a chain of pieces into VNodes of about equal cost, or where it is told to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from computepool.core.errors import InvalidSpec
from computepool.core.networks.block import Misfit
from computepool.core.networks.blocks import find_part
from computepool.core.networks.spec import SOURCE_MARK, Config, ConfigValue, Edge, TensorType, VNodeSpec

AUTO_VNODES = 8
# A residual that is heavier than this many VNodes should be is taken apart.
_HEAVY_RATIO = 1.5

Split = str | int | Sequence[str]


@dataclass(frozen=True, slots=True)
class Piece:
    """A block at its path in the uncut network; a residual holds others."""

    path: str
    block: str
    config: Config
    inner: tuple[Piece, ...] = ()
    # Its part of the network's work plus its part of the network's weights.
    cost: float = 0.0
    has_weights: bool = False

    def walk(self) -> Iterator[Piece]:
        yield self
        for piece in self.inner:
            yield from piece.walk()

    def to_entry(self) -> dict[str, ConfigValue]:
        """As an inner block of a sequential."""
        config = {"blocks": tuple(piece.to_entry() for piece in self.inner)} if self.inner else self.config
        return {"block": self.block, "path": self.path, "config": config}


def split_pieces(
    pieces: Sequence[Piece], split: Split, *, front: str, given: TensorType
) -> tuple[list[VNodeSpec], list[Edge]]:
    """VNodes in forward order, the last of which gives the output, and the edges between them and from the front."""
    weighed = _weigh(pieces, given)
    if isinstance(split, str) and split != "auto":
        raise InvalidSpec(f'split is {split!r}; give "auto", a number of VNodes, or a list of paths that begin one.')
    if isinstance(split, (str, int)):
        most = len([each for piece in weighed for each in piece.walk()])
        wanted = min(AUTO_VNODES, most) if isinstance(split, str) else split
        if not 1 <= wanted <= most:
            raise InvalidSpec(f"split is {wanted}; give 1 or more, and no more than the network has layers.")
        cuts = _balance(weighed, wanted)
    else:
        cuts = _read_cuts(weighed, split)
    drawing = _Drawing(cuts)
    drawing.draw_chain(weighed, front, is_taken=False)
    return drawing.vnodes, drawing.edges


class _Drawing:
    """Draws VNodes and edges; `cuts` are the paths that begin a VNode."""

    def __init__(self, cuts: set[str]) -> None:
        self._cuts = cuts
        self._numbers = count()
        self.vnodes: list[VNodeSpec] = []
        self.edges: list[Edge] = []

    def draw_chain(self, pieces: Sequence[Piece], feed: str, *, is_taken: bool) -> str:
        """Returns the VNode at the end of the chain. `is_taken`: something beside the chain reads the feed too."""
        group: list[Piece] = []
        feeds = [feed]
        for piece in pieces:
            is_open = any(each.path in self._cuts for inner in piece.inner for each in inner.walk())
            if group and (is_open or piece.path in self._cuts):
                feeds = [self._draw_group(group, feeds)]
                group = []
            if is_open:
                # The sum begins the next VNode.
                feeds = self._draw_residual(piece, feeds[0], is_taken=is_taken and feeds[0] == feed)
                group = [Piece(f"{piece.path}.add", "add", {})]
            else:
                group.append(piece)
        return self._draw_group(group, feeds)

    def _draw_group(self, group: Sequence[Piece], feeds: Sequence[str]) -> str:
        first = group[0]
        if len(group) == 1 and not first.inner:
            return self._draw(first.block, first.config, feeds, path=first.path)
        return self._draw("sequential", {"blocks": tuple(piece.to_entry() for piece in group)}, feeds)

    def _draw_residual(self, piece: Piece, feed: str, *, is_taken: bool) -> list[str]:
        """The two VNodes whose sum it is."""
        # Gradients of what comes in are added up within a residual first. If something else reads it too, that sum
        # needs a place of its own.
        if is_taken and not feed.startswith(SOURCE_MARK):
            feed = self._draw("identity", {}, [feed], path=f"{piece.path}.entry")
        return [feed, self.draw_chain(piece.inner, feed, is_taken=True)]

    def _draw(self, block: str, config: Config, feeds: Sequence[str], path: str = "") -> str:
        vnode_id = f"b{next(self._numbers)}"
        self.vnodes.append(VNodeSpec(vnode_id, block, config, path or vnode_id))
        self.edges += [Edge(feed, vnode_id, target_slot=slot) for slot, feed in enumerate(feeds)]
        return vnode_id


def _weigh(pieces: Sequence[Piece], given: TensorType) -> list[Piece]:
    figures = _measure(pieces, given)
    flops_total = sum(flops for flops, _ in figures.values()) or 1
    weights_total = sum(weights for _, weights in figures.values()) or 1

    def weigh(piece: Piece) -> Piece:
        inner = tuple(weigh(each) for each in piece.inner)
        flops, weights = figures.get(piece.path, (0, 0))
        cost = sum(each.cost for each in inner) + flops / flops_total + weights / weights_total
        return replace(
            piece, inner=inner, cost=cost, has_weights=weights > 0 or any(each.has_weights for each in inner)
        )

    return [weigh(piece) for piece in pieces]


def _measure(pieces: Sequence[Piece], given: TensorType) -> dict[str, tuple[int, int]]:
    """Work and weights of every leaf by its path. Behind a misfit, of which the spec's faults will tell, none."""
    figures: dict[str, tuple[int, int]] = {}
    whole = {"blocks": tuple(piece.to_entry() for piece in pieces)}
    part, _ = find_part(VNodeSpec("whole", "sequential", whole))
    if part is None:
        return figures
    try:
        for leaf, inputs in part.walk([given]):
            weights = sum(each.element_count for each in leaf.block.parameters(leaf.values, inputs))
            figures[leaf.path] = leaf.block.flops(leaf.values, inputs), weights
    except Misfit:
        pass
    return figures


def _balance(pieces: Sequence[Piece], wanted: int) -> set[str]:
    """Where to cut so that the heaviest VNode is as light as `wanted` VNodes allow."""
    target = sum(piece.cost for piece in pieces) / wanted
    atoms = _list_atoms(pieces, _HEAVY_RATIO * target)
    low, high = max(atom.cost for atom in atoms), sum(atom.cost for atom in atoms)
    for _ in range(50):
        middle = (low + high) / 2
        if len(_fill(atoms, middle)) <= wanted:
            high = middle
        else:
            low = middle
    return set(_fill(atoms, high))


@dataclass(slots=True)
class _Atom:
    """What is not cut any more, by the path of its first piece."""

    path: str
    cost: float
    has_weights: bool


def _list_atoms(pieces: Sequence[Piece], heavy: float) -> list[_Atom]:
    """In forward order. Pieces without weights stay with what comes before, those at the front with what follows."""
    atoms: list[_Atom] = []
    joins = False
    for piece in pieces:
        if piece.inner and piece.cost > heavy:
            atoms += _list_atoms(piece.inner, heavy)
            joins = False
        elif joins and not (piece.has_weights and atoms[-1].has_weights):
            atoms[-1].cost += piece.cost
            atoms[-1].has_weights |= piece.has_weights
        else:
            atoms.append(_Atom(piece.path, piece.cost, piece.has_weights))
            joins = True
    return atoms


def _fill(atoms: Sequence[_Atom], room: float) -> list[str]:
    """Paths that begin a VNode if none may cost more than `room`, which is enough for each atom."""
    starts, filled = [atoms[0].path], 0.0
    for atom in atoms:
        if filled and filled + atom.cost > room:
            starts.append(atom.path)
            filled = 0.0
        filled += atom.cost
    return starts


def _read_cuts(pieces: Sequence[Piece], split: Sequence[str]) -> set[str]:
    known = [each.path for piece in pieces for each in piece.walk()]
    strange = [path for path in split if path not in known]
    if strange:
        raise InvalidSpec(f"split names {', '.join(map(repr, strange))}; there are the paths {', '.join(known)}.")
    return set(split)
