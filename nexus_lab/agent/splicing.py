"""How a routed tool's compiled block enters the live context, and the shadow run that measures it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nexus_lab.agent.base import EventKind
from nexus_lab.agent.rows import FidelityRow
from nexus_lab.cache import Append, Repair, Splice
from nexus_lab.engine import ContextFull
from nexus_lab.errors import Cancelled, Decline, NexusError
from nexus_lab.splice import (
    Choice,
    Full,
    NoRepair,
    RepairKind,
    choose_for,
    compare_logits,
    is_anchored,
    no_room,
    noise_floor,
    parse_contract,
    why_not,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from nexus_lab.agent.base import Emitter
    from nexus_lab.agent.conversation import Conversation
    from nexus_lab.engine import Engine
    from nexus_lab.settings import Profile
    from nexus_lab.splice import BlockContext, BlockLibrary, RepairPlan, ToolBlock

__all__ = ["Spliced", "Splicer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spliced:
    """What is known of a block once it stands in the context.

    Attributes
    ----------
    row
        Path, repair and times; the shadow run adds fidelity.
    n_past
        Position of its first token.
    tokens
        Its tokens.
    """

    row: FidelityRow
    n_past: int
    tokens: tuple[int, ...]

    @property
    def reused(self) -> int:
        """Tokens whose rows came from the block file."""
        return 0 if self.row.path == "prefill" else len(self.tokens) - (self.row.repaired or 0)


class Splicer:
    """Brings blocks into conversations by the contract of the profile.

    Parameters
    ----------
    engine
        Runs the model.
    library
        Holds the compiled blocks.
    emitter
        Hears of every splice and of every decline.
    """

    def __init__(self, engine: Engine, library: BlockLibrary, emitter: Emitter) -> None:
        self._engine = engine
        self._library = library
        self._emitter = emitter

    def enter(
        self,
        conversation: Conversation,
        tokens: tuple[int, ...],
        *,
        context: tuple[int, ...],
        typical: Callable[[], BlockContext],
        tool: str,
        profile: Profile,
    ) -> Spliced:
        """Append a block at the cursor: spliced and repaired by the contract, or prefilled, saying which.

        Parameters
        ----------
        tokens
            The block's tokens.
        context
            The conversation's system prompt. Directly behind it the block is exact; it is compiled now when
            it is not there.
        typical
            Behind more than that, a block compiled behind these is taken where somebody has built it. Asked
            for only there, since it takes the tokenizer a while.
        tool
            Name of the tool, for the record.
        """
        began = time.perf_counter()
        n_past = conversation.runner.snapshot.state.next_position
        row = FidelityRow(
            path="prefill", tool=tool, n_past=n_past, n_tokens=len(tokens), contract=profile.schema_mode
        )
        with self._emitter.span(EventKind.SPLICE, "splice", tool=tool, n_past=n_past) as span:
            block, declined = self._block(conversation, tokens, context, typical)
            if block is not None and declined is None:
                choice, anchored = self._choose(conversation, block, n_past, profile)
                row, declined = _with_plan(row, choice, anchored=anchored), choice.declined
            if block is None or declined is not None or row.path == "prefill":
                conversation.step(Append(tokens), note="tool block as text")
            else:
                row = replace(row, block=block.path.stem)
                choice = self._splice(conversation, block, row.block or "", choice.plan, anchored=anchored)
                if choice.declined is not None:
                    row, declined = _with_plan(row, choice, anchored=anchored), choice.declined
            if declined is not None:
                span.decline(declined)
            span.set(path=row.path, repaired=row.repaired, tokens=len(tokens))
        row = replace(row, decline=declined, ttft_s=time.perf_counter() - began)
        return Spliced(row=row, n_past=n_past, tokens=tokens)

    def _block(
        self,
        conversation: Conversation,
        tokens: tuple[int, ...],
        context: tuple[int, ...],
        typical: Callable[[], BlockContext],
    ) -> tuple[ToolBlock | None, Decline | None]:
        unavailable = self._engine.declines.get("splice")
        if unavailable is not None:
            return None, unavailable
        live = conversation.sequence_behind(context)
        try:
            block = None if conversation.tokens == context else self._library.find(tokens, typical())
            block = block or self._library.get_or_compile(tokens, context, live=live)
        except Cancelled:
            raise
        except (NexusError, OSError) as error:
            return None, Decline("block_unavailable", str(error))
        return block, why_not(self._engine, block)

    def _choose(
        self, conversation: Conversation, block: ToolBlock, n_past: int, profile: Profile
    ) -> tuple[Choice, bool]:
        """Return what the contract asks for here, and whether the block stands where it was compiled."""
        contract = parse_contract(profile.schema_mode, profile)
        if contract is None:
            raise NexusError(f"{profile.schema_mode} does not splice", next_step="choose a splice mode")
        preceding = conversation.tokens if conversation.is_plain else None
        anchored = is_anchored(self._engine, block, n_past=n_past, preceding=preceding)
        whole = bool(conversation.runner.snapshot.state.active.all())
        choice = choose_for(self._engine, block, contract, n_past, anchored=anchored, whole=whole)
        return choice, anchored

    def _splice(
        self,
        conversation: Conversation,
        block: ToolBlock,
        address: str,
        plan: RepairPlan,
        *,
        anchored: bool,
    ) -> Choice:
        """Splice and repair; returns what was done of the plan, and why where that is not all of it."""
        first = conversation.n_tokens
        splice = Splice(address, block.tokens, block.anchor)
        done = conversation.step(splice, note="tool block", anchored=anchored)
        if done.declined:  # its file was lost since it was chosen: the tokens have been computed
            return Choice(Full().plan(block.n_tokens, first), done.declined[0])
        if plan.count:
            selection = tuple(first + index for index in plan.recomputed)
            carry = plan.kind is RepairKind.CARRIED
            with self._emitter.span(EventKind.REPAIR, plan.kind.value, tokens=plan.count):
                done = conversation.step(Repair(selection, carry=carry), note=f"{plan.kind.value} repair")
            if done.declined:
                return Choice(NoRepair().plan(block.n_tokens, first), done.declined[0])
        return Choice(plan)

    def shadow(
        self, conversation: Conversation, spliced: Spliced, prompt: tuple[int, ...], reply: tuple[int, ...]
    ) -> FidelityRow:
        """Prefill the same tokens as text on a sequence of its own, and compare what the model says.

        Parameters
        ----------
        prompt
            Tokens between the block and the reply.
        reply
            Tokens of the model's own reply; both paths are compared before each of them and after the last.

        Returns
        -------
        FidelityRow
            The splice's row with D_KL, top-1 and the noise floor, and the seconds that a prefill of block
            and prompt took; unchanged when there was no room for the comparison, which is told.
        """
        with self._emitter.span(EventKind.FIDELITY, "shadow prefill", tool=spliced.row.tool) as span:
            try:
                row = self._measure(conversation, spliced, prompt, reply)
            except Cancelled:
                raise
            except ContextFull as error:
                span.decline(no_room(error))
                row = spliced.row
            except NexusError as error:
                # The turn does not depend on what is only measured beside it.
                span.decline(Decline("shadow_failed", str(error), "no fidelity for this splice"))
                row = spliced.row
            span.add(row)
            return row

    def _measure(
        self, conversation: Conversation, spliced: Spliced, prompt: tuple[int, ...], reply: tuple[int, ...]
    ) -> FidelityRow:
        seq, floor = conversation.runner.seq, noise_floor(self._engine)
        if seq is None:
            raise NexusError("the conversation holds no sequence", next_step="open it first")
        reference, prefill_s = self._probe(seq, spliced.n_past, spliced.tokens + prompt, reply)
        behind_block = spliced.n_past + len(spliced.tokens)
        other, _ = self._probe(seq, behind_block, prompt, reply)
        fidelity = compare_logits(reference, other, noise_floor=floor.dkl)
        return replace(
            spliced.row,
            dkl=fidelity.dkl_mean,
            noise_floor=floor.dkl,
            top1=fidelity.top1,
            top5_overlap=fidelity.top5_overlap,
            n_positions=fidelity.n_positions,
            prefill_s=prefill_s,
        )

    def _probe(
        self, seq: int, n_shared: int, prompt: tuple[int, ...], reply: tuple[int, ...]
    ) -> tuple[NDArray[np.float32], float]:
        """Logits before each token of `reply` and after it, behind the first `n_shared` positions of `seq`.

        Returns float32 [len(reply) + 1, n_vocab], and the seconds that the prompt took.
        """
        import numpy as np

        with self._engine.scratch_sequence() as scratch:
            self._engine.copy_sequence(seq, scratch, 0, n_shared)
            began = time.perf_counter()
            first = self._engine.prefill(scratch, prompt, start=n_shared)
            prefill_s = time.perf_counter() - began
            rest = self._engine.prefill(scratch, reply, logits="all") if reply else None
        rows = [np.atleast_2d(logits) for logits in (first, rest) if logits is not None]
        return np.concatenate(rows), prefill_s


def _with_plan(row: FidelityRow, choice: Choice, *, anchored: bool) -> FidelityRow:
    plan = choice.plan
    if plan.count == plan.n_tokens:
        path = "prefill"
    elif plan.count:
        path = "repaired"
    else:
        path = "anchored" if anchored else "unrepaired"
    block = None if path == "prefill" else row.block
    return replace(
        row,
        path=path,
        block=block,
        repaired=plan.count,
        strategy=plan.kind.value,
        budget=plan.fraction,
    )
