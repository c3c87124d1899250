#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/half.hpp"

namespace nexus {

// ggml's numbers for the element types a KV cache may have; only f16 is read and written here.
constexpr std::int32_t kGgmlF16 = 1;
std::string ggml_type_name(std::int32_t type);

// Where one layer's K and V lie inside a sequence state, in bytes from its start.
struct LayerLayout {
    std::int32_t k_type = kGgmlF16;
    std::uint64_t k_row_bytes = 0;
    std::size_t k_offset = 0;
    std::int32_t v_type = kGgmlF16;
    std::uint64_t v_row_bytes = 0;      // 0 when v_trans
    std::uint32_t v_element_bytes = 0;  // 0 unless v_trans
    std::uint32_t n_embd_v = 0;
    std::size_t v_offset = 0;

    [[nodiscard]] std::size_t n_embd_k() const noexcept { return k_row_bytes / sizeof(Half); }
    bool operator==(const LayerLayout&) const = default;
};

// One cache's part of a state. A model with a sliding window keeps two caches, of its full and of its sliding
// layers, and writes one section each, with the same cells.
struct SectionLayout {
    std::size_t cells_offset = 0;
    std::size_t n_layer = 0;

    bool operator==(const SectionLayout&) const = default;
};

// One sequence of llama.cpp's KV cache as llama_state_seq_get_data writes it. Rows are in cell order, which
// is not position order; `positions` says which is which, for all sections. Without flash attention V is
// stored transposed (v_trans): for each embedding index the values of all cells. Layers are numbered as they
// are stored, those of the first section first.
struct StateLayout {
    std::int32_t seq_id = 0;
    bool v_trans = false;
    std::vector<std::int32_t> positions;
    std::vector<SectionLayout> sections;  // none stands for one section with all layers
    std::vector<LayerLayout> layers;
    std::size_t total_bytes = 0;

    [[nodiscard]] std::size_t n_cells() const noexcept { return positions.size(); }
    bool operator==(const StateLayout&) const = default;
};

// Throws FormatError for anything but one or two sections with the same cells in the same order, one stream
// and f16 rows that end where the buffer ends.
// `n_pos_per_embd` above 1 (M-RoPE) says that cells carry an extension, which is not known here.
StateLayout parse_state(std::span<const std::byte> buffer, int n_pos_per_embd = 1);

// Brings the rows of a second section into the order of the first one's, in place. Two caches give out their
// cells alike until one of them takes cells again that have left its window. Throws FormatError as
// parse_state does, also when the sections do not hold the same positions.
void align_sections(std::span<std::byte> buffer);

// Bytes of a state with `n_cells` cells and the layers of `like`.
std::size_t state_size(const StateLayout& like, std::size_t n_cells);

// Writes a state of the same family as `like` with these rows into `out`; keys[l] is [n, n_embd_k] and
// values[l] is [n, n_embd_v], row-major. Returns the new layout.
StateLayout build_state(const StateLayout& like, std::span<const std::int32_t> positions,
                        std::span<const Half* const> keys, std::span<const Half* const> values,
                        std::span<std::byte> out);

// Overwrites the positions of a state in place; the layout tells where they are.
void write_positions(std::span<std::byte> buffer, const StateLayout& layout,
                     std::span<const std::int32_t> positions);

// Copies a layer's V into `rows` [n_cells, n_embd_v], turning it when it is stored transposed.
void read_value_rows(std::span<const std::byte> buffer, const StateLayout& layout, std::size_t layer,
                     Half* rows);

// Throws FormatError when `buffer` is not as long as the layout says.
void check_matches(std::span<const std::byte> buffer, const StateLayout& layout);

}  // namespace nexus
