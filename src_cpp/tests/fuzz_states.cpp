// Sequence states for the fuzzer: valid ones of every layout, some that are declined, and the judge that
// holds the codec to its word.

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>

#include "core/errors.hpp"
#include "core/state_codec.hpp"
#include "tests/count_allocations.hpp"
#include "tests/fuzz_readers.hpp"

namespace nexus::fuzz {
namespace {

constexpr std::size_t kSamples = 160;
constexpr std::size_t kFirstCells = 16;
constexpr std::size_t kCellBytes = 12;
constexpr const char* kUnaligned = "cells of the second section";

using Rows = std::vector<std::vector<Half>>;

std::vector<const Half*> pointers(const Rows& rows) {
    std::vector<const Half*> found;
    for (const auto& layer : rows) {
        found.push_back(layer.data());
    }
    return found;
}

std::vector<Half> random_rows(std::size_t n, Random& random) {
    std::vector<Half> rows(n);
    for (Half& number : rows) {
        number.bits = static_cast<std::uint16_t>(random.next());
    }
    return rows;
}

StateLayout random_family(Random& random) {
    static const std::vector<std::size_t> kLayers = {1, 1, 2, 3, 5, 33};
    static const std::vector<std::uint32_t> kWidths = {1, 2, 3, 8, 16, 40, 65};
    StateLayout like;
    like.seq_id = static_cast<std::int32_t>(random.below(4));
    like.v_trans = random.percent(50);
    const bool alike = random.percent(50);
    for (std::size_t l = random.of(kLayers); l > 0; --l) {
        LayerLayout layer;
        layer.k_row_bytes = random.of(kWidths) * sizeof(Half);
        layer.n_embd_v = random.of(kWidths);
        layer.v_row_bytes = like.v_trans ? 0 : layer.n_embd_v * sizeof(Half);
        layer.v_element_bytes = like.v_trans ? sizeof(Half) : 0;
        like.layers.push_back(alike && !like.layers.empty() ? like.layers.front() : layer);
    }
    if (like.layers.size() > 1 && random.percent(50)) {  // full and sliding layers
        const std::size_t full = random.below(like.layers.size() + 1);
        like.sections = {{0, full}, {0, like.layers.size() - full}};
    }
    return like;
}

std::vector<Field> fields_of(const StateLayout& layout) {
    std::vector<Field> fields = {{0, 4}, {4, 4}};
    const auto add = [&fields](std::size_t offset, std::initializer_list<std::size_t> widths) {
        for (const std::size_t width : widths) {
            fields.push_back({offset, width});
            offset += width;
        }
    };
    for (const SectionLayout& section : layout.sections) {
        add(section.cells_offset - 8, {4, 4});
        for (std::size_t i = 0; i < layout.n_cells() && i < 3; ++i) {
            add(section.cells_offset + i * kCellBytes, {4, 4, 4});
        }
        if (layout.n_cells() > 0) {
            add(section.cells_offset + layout.n_cells() * kCellBytes, {4, 4});
        }
    }
    for (const LayerLayout& layer : layout.layers) {
        add(layer.k_offset - 12, {4, 8});
        layout.v_trans ? add(layer.v_offset - 12, {4, 4, 4}) : add(layer.v_offset - 12, {4, 8});
    }
    return fields;
}

Sample random_state(Random& random) {
    static const std::vector<std::size_t> kCells = {0, 1, 1, 2, 3, 5, 17, 40};
    const std::size_t n = random.of(kCells);
    StateLayout like = random_family(random);
    if (n == 0) {
        like.layers.clear();
        like.sections.resize(1 + random.below(2));
        like.sections.front() = like.sections.back() = SectionLayout{};
    }
    std::vector<std::int32_t> positions(n);
    for (std::int32_t& position : positions) {
        position = static_cast<std::int32_t>(random.below(10000));
    }
    Rows keys;
    Rows values;
    for (const LayerLayout& layer : like.layers) {
        keys.push_back(random_rows(n * layer.n_embd_k(), random));
        values.push_back(random_rows(n * layer.n_embd_v, random));
    }
    Bytes bytes(state_size(like, n));
    const StateLayout made = build_state(like, positions, pointers(keys), pointers(values), bytes);
    Sample sample = sample_of(std::move(bytes), fields_of(made));
    if (made.sections.size() == 2 && random.percent(40)) {  // the second section in another order
        const std::size_t cells = made.sections.back().cells_offset;
        for (std::size_t i = 0; i < n; ++i) {
            const Field one{cells + i * kCellBytes, 4};
            const Field other{cells + random.below(n) * kCellBytes, 4};
            const std::uint64_t position = sample.read_number(one);
            sample.write_number(one, sample.read_number(other));
            sample.write_number(other, position);
        }
    }
    return sample;
}

// What other caches write, which the codec declines: parts of it get into other states by splices.
Sample declined(const Sample& state, Random& random) {
    Sample other = state;
    if (random.percent(50)) {  // one section more
        const Bytes section = state.read(8, state.size);
        other.size += section.size();
        other.write(state.size, section);
    } else {  // two streams, a quantized type, a cell in two sequences
        const Field& field = random.of(other.fields);
        other.write_number(field, other.read_number(field) + 1 + random.below(8));
    }
    return other;
}

// The answer has to give the buffer back, byte by byte, when it is written again.
std::string fault_in(const StateLayout& layout, std::span<const std::byte> buffer) {
    if (layout.total_bytes != buffer.size() || state_size(layout, layout.n_cells()) != buffer.size()) {
        return "the layout's size is not the buffer's";
    }
    Rows keys;
    Rows values;
    std::size_t end = kFirstCells;
    for (std::size_t l = 0; l < layout.layers.size(); ++l) {
        const LayerLayout& layer = layout.layers[l];
        const std::size_t n_bytes = layout.n_cells() * layer.k_row_bytes;
        if (layer.k_offset <= end || n_bytes > buffer.size() || layer.k_offset > buffer.size() - n_bytes) {
            return "K rows lie outside the buffer or over something else";
        }
        end = layer.k_offset + n_bytes - 1;
        keys.emplace_back(layout.n_cells() * layer.n_embd_k());
        std::memcpy(keys.back().data(), buffer.data() + layer.k_offset, n_bytes);
        values.emplace_back(layout.n_cells() * layer.n_embd_v);
        read_value_rows(buffer, layout, l, values.back().data());
    }
    Bytes again(buffer.size());
    const StateLayout made = build_state(layout, layout.positions, pointers(keys), pointers(values), again);
    if (std::memcmp(again.data(), buffer.data(), buffer.size()) != 0) {
        return "written again, it is another state";
    }
    if (!(made == layout)) {
        return "written again, it has another layout";
    }
    write_positions(again, layout, layout.positions);
    return std::memcmp(again.data(), buffer.data(), buffer.size()) == 0 ? "" : "positions moved the rows";
}

std::vector<std::int32_t> positions_at(std::span<const std::byte> buffer, std::size_t offset, std::size_t n) {
    std::vector<std::int32_t> positions(n);
    for (std::size_t i = 0; i < n; ++i) {
        std::memcpy(&positions[i], buffer.data() + offset + i * kCellBytes, sizeof(std::int32_t));
    }
    return positions;
}

// Place in `found` of the cell that has to come to place `i`; of equal positions the first goes first.
std::size_t source_of(std::size_t i, const std::vector<std::int32_t>& wanted,
                      const std::vector<std::int32_t>& found) {
    auto earlier = std::count(wanted.begin(), wanted.begin() + static_cast<std::ptrdiff_t>(i), wanted[i]);
    std::size_t place = 0;
    while (place < found.size() && (found[place] != wanted[i] || earlier-- > 0)) {
        ++place;
    }
    return place;
}

// Aligning has to move whole cells of the second section, each once, and nothing else.
std::string fault_in_alignment(std::span<const std::byte> before, std::span<const std::byte> after) {
    const StateLayout layout = parse_state(after);
    const std::size_t n = layout.n_cells();
    const std::size_t second = layout.sections.back().cells_offset;
    if (layout.sections.size() < 2 || n == 0) {
        return std::equal(before.begin(), before.end(), after.begin()) ? "" : "aligned without need";
    }
    if (!std::equal(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(second), after.begin())) {
        return "aligning changed the first section";
    }
    const auto found = positions_at(before, second, n);
    for (std::size_t l = layout.sections.front().n_layer; l < layout.layers.size(); ++l) {
        const std::size_t width = layout.layers[l].n_embd_v;
        std::vector<Half> old_values(n * width);
        std::vector<Half> values(n * width);
        read_value_rows(before, layout, l, old_values.data());
        read_value_rows(after, layout, l, values.data());
        for (std::size_t i = 0; i < n; ++i) {
            const std::size_t from = source_of(i, layout.positions, found);
            const std::size_t row = layout.layers[l].k_row_bytes;
            const std::size_t start = layout.layers[l].k_offset;
            if (from == n ||
                std::memcmp(after.data() + start + i * row, before.data() + start + from * row, row) != 0 ||
                std::memcmp(&values[i * width], &old_values[from * width], width * sizeof(Half)) != 0) {
                return "aligning mixed the rows";
            }
        }
    }
    return "";
}

// Reads a buffer that may be aligned first, as one that comes from two caches is.
StateLayout read_aligned(std::span<std::byte> buffer, std::string& fault) {
    const Bytes before(buffer.begin(), buffer.end());
    align_sections(buffer);
    fault = fault_in_alignment(before, buffer);
    return parse_state(buffer);
}

}  // namespace

std::vector<Sample> state_samples(Random& random) {
    std::vector<Sample> samples;
    for (std::size_t i = 0; i < kSamples; ++i) {
        samples.push_back(random_state(random));
    }
    for (std::size_t i = 0; i < kSamples / 8; ++i) {
        samples.push_back(declined(samples[random.below(kSamples)], random));
    }
    return samples;
}

Verdict judge_state(const Sample& sample) {
    // An allocation of exactly this size, so that the sanitizer sees a read of one byte past the end.
    const std::unique_ptr<std::byte[]> memory(new std::byte[sample.size]);
    const Bytes bytes = sample.read(0, sample.size);
    std::copy(bytes.begin(), bytes.end(), memory.get());
    const std::span<std::byte> buffer(memory.get(), sample.size);
    const std::size_t before = testing::n_allocated_bytes();
    Verdict verdict;
    const auto attempt = [&verdict](auto read) {
        try {
            read();
        } catch (const FormatError& error) {
            verdict.refused = error.field();
        } catch (const std::exception& error) {
            verdict.fault = std::string("another error than FormatError: ") + error.what();
        }
    };
    StateLayout layout;
    attempt([&] { layout = parse_state(buffer); });
    if (const std::size_t allotted = testing::n_allocated_bytes() - before;
        allotted > kAllowance + 4 * sample.size) {
        verdict.fault =
            "allotted " + std::to_string(allotted) + " bytes for a buffer of " + std::to_string(sample.size);
    }
    if (verdict.refused == kUnaligned && verdict.fault.empty()) {
        verdict.refused.clear();
        attempt([&] { layout = read_aligned(buffer, verdict.fault); });
    }
    if (verdict.refused.empty() && verdict.fault.empty()) {
        verdict.fault = fault_in(layout, buffer);
    }
    return verdict;
}

}  // namespace nexus::fuzz
