"""
Native kernels of nexus_lab.
"""
from __future__ import annotations
import collections.abc
import numpy
import numpy.typing
import os
import typing
import typing_extensions
__all__: list[str] = ['ArenaBuffer', 'ArenaFull', 'BlockFile', 'BlockHeader', 'BuddyArena', 'EvalBridge', 'FormatError', 'Int8Matrix', 'L0Arena', 'LayerLayout', 'OpTree', 'StateLayout', 'align_state', 'build_state', 'core_version', 'cpu_features', 'parse_state', 'quantize_rows', 'rope_factors_hash', 'rope_frequencies', 'rope_kernels', 'rotate_keys', 'scan_kernels', 'set_state_positions', 'state_key', 'state_value', 'write_block']
class EvalBridge:
    """
    Native evaluation and abort callbacks of one llama.cpp context.
    
    `addresses` maps names of public ggml functions to their addresses in the loaded library.
    Without some of them patches and captures are unavailable: see layout_problem.
    """
    def __init__(self, addresses: dict) -> None:
        ...
    def arm(self, n_tokens: typing.SupportsInt | typing.SupportsIndex, *, first_position: typing.SupportsInt | typing.SupportsIndex = 0, positions: typing.Annotated[numpy.typing.ArrayLike, numpy.int32] | None = None, cell_positions: typing.Annotated[numpy.typing.ArrayLike, numpy.int32] | None = None, hidden_offsets: typing.Annotated[numpy.typing.ArrayLike, numpy.int64] | None = None, hidden: typing.Annotated[numpy.typing.ArrayLike, numpy.int32] | None = None, map_cells: bool = False, in_place: bool = False, capture_layers: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] = [], capture_queries: tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex] = (0, 0), capture_buffer: typing.Annotated[numpy.typing.ArrayLike, numpy.float32] | None = None) -> None:
        """
        Set what the next decode call, of `n_tokens` tokens in one graph, has patched and read back.
        
        positions: int32 [n_tokens], RoPE positions. cell_positions: int32, positions of the sequence's cells
        in ascending cell order. hidden_offsets: int64 [n_tokens + 1] into hidden: int32 [n, 2], half-open
        ranges of cell positions that a query must not see. in_place: write over the rows that the sequence holds
        at `positions`, each query seeing what stands there or before. capture_buffer: float32 [layer, head, query, cell].
        Raises ValueError when the plan contradicts itself, RuntimeError when one is armed.
        """
    def clear_abort(self) -> None:
        ...
    def disarm(self) -> dict:
        """
        End the plan and return what happened: problem, graphs, n_kv, destination_cells, earlier_cells,
        rewritten_cells, captured_layers.
        """
    def request_abort(self) -> None:
        """
        Stop the running decode at its next graph node. Any thread.
        """
    @property
    def abort_callback(self) -> int:
        """
        Address for abort_callback.
        """
    @property
    def abort_requested(self) -> bool:
        ...
    @property
    def eval_callback(self) -> int:
        """
        Address for cb_eval.
        """
    @property
    def first_graph_checked(self) -> bool:
        """
        Whether a whole live graph has been compared.
        """
    @property
    def layout_problem(self) -> str:
        """
        First difference between the tensor mirror and the library; empty when they agree.
        """
    @property
    def user_data(self) -> int:
        """
        User data of both callbacks; valid while this object lives.
        """
class FormatError(ValueError):
    """
    A buffer or file is not what its reader knows; `field` names what differs.
    """
    expected: typing.ClassVar[str] = ''
    field: typing.ClassVar[str] = ''
    found: typing.ClassVar[str] = ''
class ArenaFull(MemoryError):
    """
    An arena has no room for what was asked; nothing was changed.
    """
class ArenaBuffer:
    """
    A block of a BuddyArena, writable through the buffer protocol; freed when dropped.
    """
    def __len__(self) -> int:
        ...
class BuddyArena:
    """
    A region handed out in power-of-two blocks. Any thread may call.
    """
    def __init__(self, capacity_bytes: typing.SupportsInt | typing.SupportsIndex, min_block: typing.SupportsInt | typing.SupportsIndex = 4096) -> None:
        ...
    def allocate(self, n_bytes: typing.SupportsInt | typing.SupportsIndex) -> ArenaBuffer:
        """
        A block of n_bytes, not cleared; raises ArenaFull.
        """
    def check_integrity(self) -> None:
        """
        Raise RuntimeError when the bookkeeping contradicts itself.
        """
    def counters(self) -> dict[str, int]:
        ...
class L0Arena:
    """
    A fixed pool of sequence slots, matched by longest common prefix of exact tokens.
    """
    def __init__(self, n_slots: typing.SupportsInt | typing.SupportsIndex = 32, *, reserved_tokens: typing.SupportsInt | typing.SupportsIndex = 4096) -> None:
        ...
    def bind(self, slot: typing.SupportsInt | typing.SupportsIndex | None, tokens: numpy.typing.NDArray[numpy.int32]) -> int:
        """
        Say what a slot holds, and return the slot.
        
        With slot None an empty one is taken, or the least recently used one that is not pinned is evicted; raises
        ArenaFull when all are pinned.
        """
    def check_integrity(self) -> None:
        """
        Raise RuntimeError when the bookkeeping contradicts itself.
        """
    def counters(self) -> dict[str, int]:
        ...
    def match(self, tokens: numpy.typing.NDArray[numpy.int32]) -> tuple[int, int]:
        """
        (slot, number of shared tokens), or (-1, 0); the slot counts as used now.
        """
    def pin(self, slot: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def release(self, slot: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Empty a slot; ValueError while it is pinned.
        """
    def tokens(self, slot: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.int32]:
        """
        What a slot holds, int32.
        """
    def unpin(self, slot: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
class BlockHeader:
    """
    What a tool block was compiled for: model, rotation, anchor, context.
    """
    def __init__(self, *, n_layer: typing.SupportsInt | typing.SupportsIndex, k_row_bytes: typing.SupportsInt | typing.SupportsIndex, v_row_bytes: typing.SupportsInt | typing.SupportsIndex, v_trans: bool, head_dim: typing.SupportsInt | typing.SupportsIndex, n_rot: typing.SupportsInt | typing.SupportsIndex, pairing: str, rope_base: typing.SupportsFloat | typing.SupportsIndex, rope_scale: typing.SupportsFloat | typing.SupportsIndex = 1.0, ext_factor: typing.SupportsFloat | typing.SupportsIndex = 0.0, attn_factor: typing.SupportsFloat | typing.SupportsIndex = 1.0, n_ctx_orig: typing.SupportsInt | typing.SupportsIndex = 0, rope_factors_hash: bytes | None = None, fingerprint: bytes, anchor: typing.SupportsInt | typing.SupportsIndex = 0, context_hash: bytes | None = None) -> None:
        """
        Hashes are bytes: 8 for rope_factors_hash, 16 for the others; a hash that is None is all zero.
        """
    def check_model(self, model: BlockHeader) -> None:
        """
        Raise FormatError naming the first field in which this block does not fit the model.
        
        All fields count but anchor, n_tokens, context_hash and payload_hash; `expected` is the model's value.
        """
    @property
    def anchor(self) -> int:
        """
        Position of the first token when it was compiled.
        """
    @property
    def attn_factor(self) -> float:
        ...
    @property
    def context_hash(self) -> bytes:
        ...
    @property
    def ext_factor(self) -> float:
        ...
    @property
    def file_bytes(self) -> int:
        ...
    @property
    def fingerprint(self) -> bytes:
        ...
    @property
    def head_dim(self) -> int:
        ...
    @property
    def k_row_bytes(self) -> int:
        ...
    @property
    def k_type(self) -> int:
        ...
    @property
    def n_ctx_orig(self) -> int:
        ...
    @property
    def n_layer(self) -> int:
        ...
    @property
    def n_rot(self) -> int:
        ...
    @property
    def n_tokens(self) -> int:
        ...
    @property
    def pairing(self) -> str:
        ...
    @property
    def payload_hash(self) -> bytes:
        ...
    @property
    def rope_base(self) -> float:
        ...
    @property
    def rope_factors_hash(self) -> bytes:
        ...
    @property
    def rope_scale(self) -> float:
        ...
    @property
    def v_row_bytes(self) -> int:
        ...
    @property
    def v_trans(self) -> bool:
        ...
    @property
    def v_type(self) -> int:
        ...
    @property
    def version(self) -> int:
        """
        2 with a sensitivity, 1 without.
        """
class BlockFile:
    """
    A tool block mapped for reading; its arrays are views.
    """
    def __init__(self, path: os.PathLike | str | bytes) -> None:
        """
        Raises FormatError for a truncated or foreign file, naming the field, and OSError when unreadable.
        """
    def key(self, layer: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.float16]:
        """
        K rows of a layer, float16 [n_tokens, k_row_bytes / 2], rotated from the anchor.
        """
    def value(self, layer: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.float16]:
        """
        V rows of a layer, float16 [n_tokens, v_row_bytes / 2].
        """
    def verify(self) -> None:
        """
        Read the payload; raises FormatError when its hash is not the header's.
        """
    @property
    def header(self) -> BlockHeader:
        ...
    @property
    def sensitivity(self) -> numpy.typing.NDArray[numpy.float32] | None:
        """
        How far each token's rows moved between contexts, float32 [n_tokens]; None when the block was compiled behind one.
        """
    @property
    def tokens(self) -> numpy.typing.NDArray[numpy.int32]:
        ...
class OpTree:
    """
    Cache programs as a radix tree that shares their common beginnings.
    
    Programs are int32 words in canonical form; a node's number stays while it is an entry. Tiers are bits: 1 live,
    2 host, 4 disk. Any thread may call.
    """
    def __init__(self, max_words: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def check_integrity(self) -> None:
        """
        Raise RuntimeError when the structure contradicts itself.
        """
    def counters(self) -> dict[str, int]:
        ...
    def evict(self) -> int:
        """
        Forget the longest unlocked program that was used longest ago; returns its former node, or -1.
        """
    def insert(self, words: numpy.typing.NDArray[numpy.int32], tier: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        Make the program an entry in a tier and return its node; raises ArenaFull, and changes nothing then.
        """
    def lock(self, node: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Keep a node and everything above it.
        """
    def match(self, words: numpy.typing.NDArray[numpy.int32]) -> tuple[int, int, int, int, int, int, bool]:
        """
        The longest beginning of the program that is in the tree, which counts as used now.
        
        Returns (node, words of it that matched, tokens, whole operations, tokens of the append after them, deepest entry
        on the way or -1, whether all of the program is in the tree).
        """
    def path(self, node: typing.SupportsInt | typing.SupportsIndex) -> list[int]:
        """
        Nodes from below the root to this one.
        """
    def program(self, node: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.int32]:
        """
        Words of the program that ends at a node, int32.
        """
    def remove(self, entry: typing.SupportsInt | typing.SupportsIndex, tier: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Take an entry out of a tier; what only led to it goes.
        """
    def source(self, node: typing.SupportsInt | typing.SupportsIndex, tiers: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        An entry in one of the tiers that only appends and splices behind the node, or -1.
        """
    def survey(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [nodes, 10], parents before children.
        
        Columns: node, parent, kind (-1 for the root), first token, tokens, tokens that every longest program through it
        has dropped, locks at or below it, tiers of the entry that ends there, tiers of the entries at or below it that
        have not dropped all of its tokens, logical time of the last use.
        """
    def unlock(self, node: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
class Int8Matrix:
    """
    Rows of int8 numbers in [-127, 127], compared with a query by exact dot products.
    """
    def __init__(self, dim: typing.SupportsInt | typing.SupportsIndex, *, kernel: str = 'auto') -> None:
        """
        kernel is one of scan_kernels(), or auto for the first of them.
        """
    def __len__(self) -> int:
        ...
    def append(self, rows: numpy.typing.NDArray[numpy.int8]) -> None:
        """
        Add rows, int8 [n, dim] or [dim].
        """
    def dots(self, query: numpy.typing.NDArray[numpy.int8]) -> numpy.typing.NDArray[numpy.int32]:
        """
        Dot product of each row with query (int8 [dim]), int32 [n].
        """
    def remove_row(self, index: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Remove a row; later rows move up by one.
        """
    def rows(self) -> numpy.typing.NDArray[numpy.int8]:
        """
        A copy of all rows, int8 [n, dim].
        """
    def set_row(self, index: typing.SupportsInt | typing.SupportsIndex, row: numpy.typing.NDArray[numpy.int8]) -> None:
        ...
    def top_k(self, query: numpy.typing.NDArray[numpy.int8], k: typing.SupportsInt | typing.SupportsIndex) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int32], int]:
        """
        (ids int64 [k], dots int32 [k], margin) of the best rows, best first.
        
        k is clipped to the number of rows, and ties go to the lower row. margin is the best dot less the second best,
        whatever k is; 0 with fewer than two rows.
        """
    def top_k_pooled(self, query: numpy.typing.NDArray[numpy.int8], groups: numpy.typing.NDArray[numpy.int32], n_groups: typing.SupportsInt | typing.SupportsIndex, k: typing.SupportsInt | typing.SupportsIndex) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int32], int]:
        """
        As top_k, over groups of rows: a group counts as its best row.
        
        groups is int32 [n], each in [0, n_groups); ids are groups. A group without rows is no candidate.
        """
    @property
    def dim(self) -> int:
        ...
    @property
    def kernel(self) -> str:
        ...
    @property
    def nbytes(self) -> int:
        ...
class LayerLayout:
    """
    Where one layer's K and V lie in a sequence state, in bytes.
    """
    @property
    def k_offset(self) -> int:
        ...
    @property
    def k_row_bytes(self) -> int:
        ...
    @property
    def k_type(self) -> int:
        ...
    @property
    def n_embd_k(self) -> int:
        ...
    @property
    def n_embd_v(self) -> int:
        ...
    @property
    def v_element_bytes(self) -> int:
        """
        0 unless V is stored transposed.
        """
    @property
    def v_offset(self) -> int:
        ...
    @property
    def v_row_bytes(self) -> int:
        """
        0 when V is stored transposed.
        """
    @property
    def v_type(self) -> int:
        ...
class StateLayout:
    """
    One sequence of the KV cache as llama.cpp writes it; rows are in cell order.
    """
    def size_for(self, n_cells: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        Bytes of a state of this family with n_cells cells.
        """
    @property
    def layers(self) -> list[LayerLayout]:
        ...
    @property
    def n_cells(self) -> int:
        ...
    @property
    def n_layer(self) -> int:
        ...
    @property
    def positions(self) -> numpy.typing.NDArray[numpy.int32]:
        ...
    @property
    def section_layers(self) -> list[int]:
        """
        Layers of each section: of the one cache, or of the full and the sliding layers' caches.
        """
    @property
    def seq_id(self) -> int:
        ...
    @property
    def total_bytes(self) -> int:
        ...
    @property
    def v_trans(self) -> bool:
        ...
def align_state(buffer: typing_extensions.Buffer) -> None:
    """
    Bring the rows of a state's second section into the order of the first one's, in place.
    
    Raises FormatError naming the field that is not known, also when the sections hold different positions.
    """
def build_state(template: StateLayout, positions: numpy.typing.NDArray[numpy.int32], keys: list[numpy.typing.NDArray[numpy.float16]], values: list[numpy.typing.NDArray[numpy.float16]], out: typing_extensions.Buffer | None = None) -> typing.Any:
    """
    Write a state of the template's family: any number of cells, the same layers and V layout.
    
    positions is int32 [n]; keys and values hold one float16 [n, n_embd] per layer. Returns a new bytearray, or
    `out` with its first template.size_for(n) bytes written.
    """
def core_version() -> str:
    """
    Version of the native core.
    """
def cpu_features() -> dict[str, bool]:
    """
    What this processor offers of the instruction sets that the kernels know.
    """
def parse_state(buffer: typing_extensions.Buffer, *, n_pos_per_embd: typing.SupportsInt | typing.SupportsIndex = 1) -> StateLayout:
    """
    Read the layout of a sequence state; raises FormatError naming the field that is not known.
    
    Known are one section, or two with the same cells in the same order, one stream, one sequence per cell and f16
    rows, with V in rows or transposed. An empty sequence gives a layout without layers.
    """
def quantize_rows(rows: numpy.typing.NDArray[numpy.float32]) -> tuple[numpy.typing.NDArray[numpy.int8], numpy.typing.NDArray[numpy.float32]]:
    """
    Symmetric int8 codes of each row and the scales that undo them: (int8 [n, dim], float32 [n]).
    
    rows is float32 [n, dim]; the largest magnitude of a row becomes 127, and a row of zeros has scale 0.
    """
def rope_factors_hash(factors: typing.Annotated[numpy.typing.ArrayLike, numpy.float32] | None) -> bytes:
    """
    8 bytes that name frequency factors in a block header; all zero for None.
    """
def rope_frequencies(*, n_rot: typing.SupportsInt | typing.SupportsIndex, base: typing.SupportsFloat | typing.SupportsIndex, scale: typing.SupportsFloat | typing.SupportsIndex = 1.0, factors: typing.Annotated[numpy.typing.ArrayLike, numpy.float32] | None = None, ext_factor: typing.SupportsFloat | typing.SupportsIndex = 0.0, n_ctx_orig: typing.SupportsFloat | typing.SupportsIndex = 0.0, beta_fast: typing.SupportsFloat | typing.SupportsIndex = 32.0, beta_slow: typing.SupportsFloat | typing.SupportsIndex = 1.0) -> numpy.typing.NDArray[numpy.float64]:
    """
    Radians per position of each rotating pair, float64 [n_rot / 2].
    
    scale * base ** (-2 i / n_rot) / factors[i]; with a nonzero ext_factor, mixed by frequency as YaRN prescribes.
    The attention magnitude of YaRN is no part of it, since a rotation must keep norms.
    """
def rope_kernels() -> list[str]:
    """
    Rotation kernels usable here, best first; all give the same bits.
    """
def rotate_keys(rows: numpy.typing.NDArray[numpy.float16], *, head_dim: typing.SupportsInt | typing.SupportsIndex, n_rot: typing.SupportsInt | typing.SupportsIndex, pairing: str, deltas: numpy.typing.NDArray[numpy.int32], inv_freq: numpy.typing.NDArray[numpy.float64], kernel: str = 'auto') -> None:
    """
    Rotate K rows in place, row r by deltas[r] positions.
    
    rows is float16 [n, n_head_kv * head_dim], writable and in C order. The first n_rot numbers of each head turn;
    pairing is "norm" for (2i, 2i + 1) or "neox" for (i, i + n_rot / 2). A delta of 0 leaves the bits alone.
    """
def scan_kernels() -> list[str]:
    """
    Scan kernels usable here, best first; all give the same numbers.
    """
def set_state_positions(buffer: typing_extensions.Buffer, layout: StateLayout, positions: numpy.typing.NDArray[numpy.int32]) -> None:
    """
    Overwrite the cells' positions in a writable state buffer.
    """
def state_key(buffer: typing_extensions.Buffer, layout: StateLayout, layer: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.float16]:
    """
    K rows of a layer, float16 [n_cells, n_embd_k]: a view, writable when the buffer is.
    """
def state_value(buffer: typing_extensions.Buffer, layout: StateLayout, layer: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.float16]:
    """
    V rows of a layer, float16 [n_cells, n_embd_v]: a view, or a copy when V is stored transposed.
    """
def write_block(path: os.PathLike | str | bytes, header: BlockHeader, tokens: numpy.typing.NDArray[numpy.int32], keys: list[numpy.typing.NDArray[numpy.float16]], values: list[numpy.typing.NDArray[numpy.float16]], sensitivity: numpy.typing.NDArray[numpy.float32] | None = None) -> BlockHeader:
    """
    Write a tool block atomically and return its header, with token count and payload hash filled in.
    
    tokens is int32 [n]; keys and values hold one float16 [n, row_bytes / 2] per layer; sensitivity, if the block
    was compiled behind several contexts, is float32 [n], finite and at least 0.
    """
