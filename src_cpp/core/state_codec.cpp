#include "core/state_codec.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "core/byte_io.hpp"
#include "core/transpose.hpp"

namespace nexus {
namespace {

constexpr std::uint32_t kMagic = 0xAF143CD8U;
constexpr std::size_t kHeadBytes = 8;         // magic, sequence
constexpr std::size_t kSectionHeadBytes = 8;  // stream count, cell count
constexpr std::size_t kMaxSections = 2;
constexpr std::size_t kCellBytes = 12;  // position, number of sequences, sequence
constexpr std::size_t kLayerHeadBytes = 12;
constexpr std::size_t kTransposedHeadBytes = 12;

template <typename T>
void expect(const char* field, const T& found, const T& wanted) {
    if (found != wanted) {
        throw FormatError(field, std::to_string(wanted), std::to_string(found));
    }
}

std::string in_layer(const char* field, std::size_t layer) {
    return std::string(field) + " of layer " + std::to_string(layer);
}

std::int32_t read_type(ByteReader& reader, const char* field, std::size_t layer) {
    const auto type = reader.read<std::int32_t>(field);
    if (type != kGgmlF16) {
        throw FormatError(in_layer(field, layer), ggml_type_name(kGgmlF16), ggml_type_name(type));
    }
    return type;
}

// Checks a row's size before anything multiplies it, so that no product can overflow.
std::size_t rows_bytes(const ByteReader& reader, const char* field, std::size_t layer,
                       std::uint64_t row_bytes, std::size_t n_rows) {
    if (row_bytes == 0 || row_bytes % sizeof(Half) != 0) {
        throw FormatError(in_layer(field, layer), "a positive multiple of 2", std::to_string(row_bytes));
    }
    if (row_bytes > reader.remaining() / n_rows) {
        throw FormatError(in_layer(field, layer), "rows that fit the buffer",
                          std::to_string(row_bytes) + " bytes a row (truncated)");
    }
    return static_cast<std::size_t>(row_bytes) * n_rows;
}

using Positions = std::vector<std::int32_t>;

Positions read_cells(ByteReader& reader, std::size_t n_cells, std::int32_t seq_id) {
    if (n_cells > reader.remaining() / kCellBytes) {
        throw FormatError("cell_count", "cells that fit the buffer",
                          std::to_string(n_cells) + " (truncated)");
    }
    Positions positions;
    positions.reserve(n_cells);
    for (std::size_t i = 0; i < n_cells; ++i) {
        const auto position = reader.read<std::int32_t>("position");
        if (position < 0) {
            throw FormatError("position", "0 or more", std::to_string(position));
        }
        expect("n_seq_id", reader.read<std::uint32_t>("n_seq_id"), 1U);
        expect("cell_seq_id", reader.read<std::int32_t>("cell_seq_id"), seq_id);
        positions.push_back(position);
    }
    return positions;
}

void read_keys(ByteReader& reader, std::size_t first, StateLayout& layout) {
    for (std::size_t l = first; l < layout.layers.size(); ++l) {
        LayerLayout& layer = layout.layers[l];
        layer.k_type = read_type(reader, "k_type", l);
        layer.k_row_bytes = reader.read<std::uint64_t>("k_row_bytes");
        layer.k_offset = reader.offset();
        reader.skip("k_rows", rows_bytes(reader, "k_row_bytes", l, layer.k_row_bytes, layout.n_cells()));
    }
}

void read_values(ByteReader& reader, std::size_t first, StateLayout& layout) {
    for (std::size_t l = first; l < layout.layers.size(); ++l) {
        LayerLayout& layer = layout.layers[l];
        layer.v_type = read_type(reader, "v_type", l);
        layer.v_row_bytes = reader.read<std::uint64_t>("v_row_bytes");
        layer.v_offset = reader.offset();
        reader.skip("v_rows", rows_bytes(reader, "v_row_bytes", l, layer.v_row_bytes, layout.n_cells()));
        if (layer.v_row_bytes / sizeof(Half) > std::numeric_limits<std::uint32_t>::max()) {
            throw FormatError(in_layer("v_row_bytes", l), "a row of 32-bit length",
                              std::to_string(layer.v_row_bytes));
        }
        layer.n_embd_v = static_cast<std::uint32_t>(layer.v_row_bytes / sizeof(Half));
    }
}

void read_transposed_values(ByteReader& reader, std::size_t first, StateLayout& layout) {
    for (std::size_t l = first; l < layout.layers.size(); ++l) {
        LayerLayout& layer = layout.layers[l];
        layer.v_type = read_type(reader, "v_type", l);
        layer.v_element_bytes = reader.read<std::uint32_t>("v_element_bytes");
        expect("v_element_bytes", layer.v_element_bytes, static_cast<std::uint32_t>(sizeof(Half)));
        layer.n_embd_v = reader.read<std::uint32_t>("n_embd_v");
        layer.v_offset = reader.offset();
        const std::uint64_t row_bytes = std::uint64_t{layer.n_embd_v} * sizeof(Half);
        reader.skip("v_rows", rows_bytes(reader, "n_embd_v", l, row_bytes, layout.n_cells()));
    }
}

// Reads one section, adds its layers, and returns its positions.
Positions read_section(ByteReader& reader, StateLayout& layout) {
    const bool first = layout.sections.empty();
    expect("n_stream", reader.read<std::uint32_t>("n_stream"), 1U);
    const auto n_cells = reader.read<std::uint32_t>("cell_count");
    SectionLayout section;
    section.cells_offset = reader.offset();
    Positions positions = read_cells(reader, n_cells, layout.seq_id);
    if (first) {
        layout.positions = positions;
    } else if (positions.size() != layout.n_cells()) {
        throw FormatError("cells of the second section", std::to_string(layout.n_cells()),
                          std::to_string(positions.size()) + " (the others have left the sliding window)");
    }
    if (n_cells > 0) {
        const auto v_trans = reader.read<std::uint32_t>("v_trans");
        if (v_trans > 1 || (!first && (v_trans == 1) != layout.v_trans)) {
            throw FormatError("v_trans", first ? "0 or 1" : "the first section's", std::to_string(v_trans));
        }
        layout.v_trans = v_trans == 1;
        const auto n_layer = reader.read<std::uint32_t>("n_layer");
        // K and V each have a head, so that what is allotted is in proportion to the buffer.
        if (n_layer > reader.remaining() / (kLayerHeadBytes + kTransposedHeadBytes)) {
            throw FormatError("n_layer", "layers that fit the buffer", std::to_string(n_layer));
        }
        section.n_layer = n_layer;
        const std::size_t first_layer = layout.layers.size();
        layout.layers.resize(first_layer + n_layer);
        read_keys(reader, first_layer, layout);
        layout.v_trans ? read_transposed_values(reader, first_layer, layout)
                       : read_values(reader, first_layer, layout);
    }
    layout.sections.push_back(section);
    return positions;
}

// What may follow a section is the sliding-window cache's, or nothing this reader knows.
bool another_section(const ByteReader& reader, std::span<const std::byte> buffer, std::size_t n_read) {
    if (reader.remaining() == 0) {
        return false;
    }
    std::uint32_t n_stream = 0;
    if (reader.remaining() >= kSectionHeadBytes) {
        std::memcpy(&n_stream, buffer.data() + reader.offset(), sizeof n_stream);
    }
    if (n_read == kMaxSections || n_stream != 1) {
        throw FormatError(
            "sections", "1 or 2, ending with the buffer",
            std::to_string(n_read) + " and " + std::to_string(reader.remaining()) + " bytes more");
    }
    return true;
}

// The layout, and the positions of each section.
std::pair<StateLayout, std::vector<Positions>> read_sections(std::span<const std::byte> buffer) {
    ByteReader reader(buffer);
    StateLayout layout;
    expect("magic", reader.read<std::uint32_t>("magic"), kMagic);
    layout.seq_id = reader.read<std::int32_t>("seq_id");
    std::vector<Positions> positions;
    do {
        positions.push_back(read_section(reader, layout));
    } while (another_section(reader, buffer, positions.size()));
    if (layout.n_cells() > 0 && layout.layers.empty()) {
        throw FormatError("n_layer", "at least one", "0");
    }
    layout.total_bytes = buffer.size();
    return {std::move(layout), std::move(positions)};
}

// For each position wanted, its place in `found`; throws FormatError unless both hold the same ones.
std::vector<std::size_t> places(const Positions& wanted, const Positions& found) {
    const auto sorted = [](const Positions& positions) {
        std::vector<std::size_t> order(positions.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::stable_sort(order.begin(), order.end(),
                         [&](std::size_t a, std::size_t b) { return positions[a] < positions[b]; });
        return order;
    };
    const auto from = sorted(found);
    const auto to = sorted(wanted);
    std::vector<std::size_t> result(wanted.size());
    for (std::size_t i = 0; i < to.size(); ++i) {
        if (wanted[to[i]] != found[from[i]]) {
            throw FormatError("cells of the second section", "position " + std::to_string(wanted[to[i]]),
                              "position " + std::to_string(found[from[i]]));
        }
        result[to[i]] = from[i];
    }
    return result;
}

// Puts element order[i] of `n_bytes` bytes each at place i.
void gather(std::byte* elements, std::size_t n_bytes, std::span<const std::size_t> order) {
    const std::vector<std::byte> old(elements, elements + order.size() * n_bytes);
    for (std::size_t i = 0; i < order.size(); ++i) {
        std::memcpy(elements + i * n_bytes, old.data() + order[i] * n_bytes, n_bytes);
    }
}

void gather_layer(std::byte* state, const LayerLayout& layer, bool v_trans,
                  std::span<const std::size_t> order) {
    gather(state + layer.k_offset, layer.k_row_bytes, order);
    if (!v_trans) {
        gather(state + layer.v_offset, layer.v_row_bytes, order);
        return;
    }
    for (std::size_t e = 0; e < layer.n_embd_v; ++e) {
        gather(state + layer.v_offset + e * order.size() * sizeof(Half), sizeof(Half), order);
    }
}

}  // namespace

std::string ggml_type_name(std::int32_t type) {
    const auto named = [type](const char* name) { return std::to_string(type) + " (" + name + ")"; };
    switch (type) {
        case 0:
            return named("f32");
        case kGgmlF16:
            return named("f16");
        case 2:
            return named("q4_0");
        case 3:
            return named("q4_1");
        case 6:
            return named("q5_0");
        case 7:
            return named("q5_1");
        case 8:
            return named("q8_0");
        case 20:
            return named("iq4_nl");
        case 30:
            return named("bf16");
        default:
            return named("unknown");
    }
}

StateLayout parse_state(std::span<const std::byte> buffer, int n_pos_per_embd) {
    expect("n_pos_per_embd", n_pos_per_embd, 1);
    auto [layout, positions] = read_sections(buffer);
    if (positions.back() != layout.positions) {
        throw FormatError("cells of the second section", "those of the first, in its order",
                          "others, or another order");
    }
    return std::move(layout);
}

void align_sections(std::span<std::byte> buffer) {
    const auto [layout, positions] = read_sections(buffer);
    if (positions.back() == layout.positions) {
        return;
    }
    const auto order = places(layout.positions, positions.back());
    gather(buffer.data() + layout.sections.back().cells_offset, kCellBytes, order);
    for (std::size_t l = layout.sections.front().n_layer; l < layout.layers.size(); ++l) {
        gather_layer(buffer.data(), layout.layers[l], layout.v_trans, order);
    }
}

std::size_t state_size(const StateLayout& like, std::size_t n_cells) {
    const std::size_t n_sections = std::max<std::size_t>(like.sections.size(), 1);
    std::size_t total = kHeadBytes + n_sections * kSectionHeadBytes;
    if (n_cells == 0) {
        return total;
    }
    total += n_sections * (n_cells * kCellBytes + 2 * sizeof(std::uint32_t));
    for (const LayerLayout& layer : like.layers) {
        total += kLayerHeadBytes + n_cells * layer.k_row_bytes;
        total +=
            (like.v_trans ? kTransposedHeadBytes : kLayerHeadBytes) + n_cells * layer.n_embd_v * sizeof(Half);
    }
    return total;
}

namespace {

using LayerRows = std::span<const Half* const>;

void write_keys(ByteWriter& writer, std::span<LayerLayout> layers, LayerRows keys, std::size_t n) {
    for (std::size_t l = 0; l < layers.size(); ++l) {
        writer.write(layers[l].k_type);
        writer.write(layers[l].k_row_bytes);
        layers[l].k_offset = writer.offset();
        const std::size_t n_bytes = n * layers[l].k_row_bytes;
        std::memcpy(writer.take(n_bytes), keys[l], n_bytes);
    }
}

void write_values(ByteWriter& writer, std::span<LayerLayout> layers, LayerRows values, std::size_t n,
                  bool v_trans) {
    for (std::size_t l = 0; l < layers.size(); ++l) {
        LayerLayout& layer = layers[l];
        writer.write(layer.v_type);
        const std::size_t n_bytes = n * layer.n_embd_v * sizeof(Half);
        if (v_trans) {
            writer.write(layer.v_element_bytes);
            writer.write(layer.n_embd_v);
            layer.v_offset = writer.offset();
            transpose(values[l], n, layer.n_embd_v, writer.take(n_bytes));
        } else {
            writer.write(layer.v_row_bytes);
            layer.v_offset = writer.offset();
            std::memcpy(writer.take(n_bytes), values[l], n_bytes);
        }
    }
}

}  // namespace

StateLayout build_state(const StateLayout& like, std::span<const std::int32_t> positions,
                        std::span<const Half* const> keys, std::span<const Half* const> values,
                        std::span<std::byte> out) {
    const std::size_t n = positions.size();
    if (n > 0 && like.layers.empty()) {
        throw std::invalid_argument("the template has no layers: it was parsed from an empty sequence");
    }
    if (keys.size() != like.layers.size() || values.size() != like.layers.size()) {
        throw std::invalid_argument("keys and values must hold one array per layer of the template");
    }
    if (n > std::numeric_limits<std::uint32_t>::max()) {
        throw std::invalid_argument("too many cells");
    }
    StateLayout made = like;
    made.positions.assign(positions.begin(), positions.end());
    made.total_bytes = state_size(like, n);
    ByteWriter writer(out);
    writer.write(kMagic);
    writer.write(like.seq_id);
    if (made.sections.empty()) {
        made.sections.push_back({0, made.layers.size()});
    }
    std::size_t first = 0;
    for (SectionLayout& section : made.sections) {
        writer.write(std::uint32_t{1});
        writer.write(static_cast<std::uint32_t>(n));
        section.cells_offset = writer.offset();
        if (n == 0) {
            continue;
        }
        for (const std::int32_t position : positions) {
            writer.write(position);
            writer.write(std::uint32_t{1});
            writer.write(like.seq_id);
        }
        writer.write(std::uint32_t{like.v_trans ? 1U : 0U});
        writer.write(static_cast<std::uint32_t>(section.n_layer));
        const auto layers = std::span(made.layers).subspan(first, section.n_layer);
        write_keys(writer, layers, keys.subspan(first, section.n_layer), n);
        write_values(writer, layers, values.subspan(first, section.n_layer), n, like.v_trans);
        first += section.n_layer;
    }
    return made;
}

void write_positions(std::span<std::byte> buffer, const StateLayout& layout,
                     std::span<const std::int32_t> positions) {
    check_matches(buffer, layout);
    if (positions.size() != layout.n_cells()) {
        throw std::invalid_argument("one position per cell is needed");
    }
    for (const SectionLayout& section : layout.sections) {
        for (std::size_t i = 0; i < positions.size(); ++i) {
            std::memcpy(buffer.data() + section.cells_offset + i * kCellBytes, &positions[i],
                        sizeof(std::int32_t));
        }
    }
}

void read_value_rows(std::span<const std::byte> buffer, const StateLayout& layout, std::size_t layer,
                     Half* rows) {
    check_matches(buffer, layout);
    const LayerLayout& found = layout.layers.at(layer);
    const std::byte* source = buffer.data() + found.v_offset;
    if (layout.v_trans) {
        transpose(source, found.n_embd_v, layout.n_cells(), rows);
    } else {
        std::memcpy(rows, source, layout.n_cells() * found.n_embd_v * sizeof(Half));
    }
}

void check_matches(std::span<const std::byte> buffer, const StateLayout& layout) {
    if (buffer.size() < layout.total_bytes) {
        throw FormatError("total_bytes", std::to_string(layout.total_bytes), std::to_string(buffer.size()));
    }
}

}  // namespace nexus
