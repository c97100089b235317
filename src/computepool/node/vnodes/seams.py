"""What happens to a tensor between two VNodes: the same thing whether or not they share a machine.

Bits depend on more than values. A kernel may add in another order when its operand lies in memory in another way, and
autograd adds up the gradients of a tensor that is used several times in the order of its uses. So every seam, in the
reference too, puts both into one fixed form.
"""

from __future__ import annotations

from torch import Tensor


def enter(tensor: Tensor, *, is_shared: bool) -> Tensor:
    """A VNode's view of one of its inputs, made slot by slot just before its module is called.

    `is_shared`: more than one edge reads this tensor. The node of its own gathers what the module's inner uses give
    back before anything is added to the gradients of the other readers: across machines it cannot be otherwise.
    """
    return tensor.view_as(tensor) if is_shared and tensor.requires_grad else tensor


def leave(tensor: Tensor) -> Tensor:
    """A VNode's output as every reader sees it: dense, at the start of its own memory, and its gradient dense too."""
    if tensor.storage_offset() or not tensor.is_contiguous():
        tensor = tensor.clone().contiguous() if tensor.storage_offset() else tensor.contiguous()
    if tensor.requires_grad:
        tensor.register_hook(_make_dense)
    return tensor


def _make_dense(gradient: Tensor) -> Tensor:
    return gradient.contiguous()
