// The sequence-state codec: what it builds it reads back, and no buffer, however damaged, gets past it
// unseen.

#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/errors.hpp"
#include "core/state_codec.hpp"
#include "tests/check.hpp"

using nexus::FormatError;
using nexus::Half;
using nexus::LayerLayout;
using nexus::StateLayout;

namespace {

constexpr std::size_t kKeyWidth = 6;
constexpr std::size_t kValueWidth = 10;

StateLayout family(std::size_t n_layer, bool v_trans, std::size_t sliding_layers = 0) {
    StateLayout layout;
    layout.seq_id = 3;
    layout.v_trans = v_trans;
    if (sliding_layers > 0) {
        layout.sections = {{0, n_layer - sliding_layers}, {0, sliding_layers}};
    }
    LayerLayout layer;
    layer.k_row_bytes = kKeyWidth * sizeof(Half);
    layer.v_row_bytes = v_trans ? 0 : kValueWidth * sizeof(Half);
    layer.v_element_bytes = v_trans ? sizeof(Half) : 0;
    layer.n_embd_v = kValueWidth;
    layout.layers.assign(n_layer, layer);
    return layout;
}

struct Rows {
    std::vector<std::vector<Half>> layers;
    std::vector<const Half*> pointers;

    Rows(std::size_t n_layer, std::size_t n, std::uint16_t start) {
        for (std::size_t l = 0; l < n_layer; ++l) {
            std::vector<Half> rows(n);
            for (Half& number : rows) {
                number.bits = start++;
            }
            layers.push_back(std::move(rows));
            pointers.push_back(layers.back().data());
        }
    }
};

struct Built {
    std::vector<std::byte> bytes;
    StateLayout layout;
    Rows keys;
    Rows values;
};

Built build(std::size_t n_layer, const std::vector<std::int32_t>& positions, bool v_trans,
            std::size_t sliding_layers = 0) {
    const StateLayout like = family(n_layer, v_trans, sliding_layers);
    Built built{{},
                {},
                Rows(n_layer, positions.size() * kKeyWidth, 1),
                Rows(n_layer, positions.size() * kValueWidth, 9000)};
    built.bytes.resize(nexus::state_size(like, positions.size()));
    built.layout =
        nexus::build_state(like, positions, built.keys.pointers, built.values.pointers, built.bytes);
    return built;
}

const char* field_of(const std::vector<std::byte>& bytes) {
    static std::string field;
    try {
        nexus::parse_state(bytes);
        field = "";
    } catch (const FormatError& error) {
        field = error.field();
    }
    return field.c_str();
}

bool refused_as(const std::vector<std::byte>& bytes, const char* field) {
    return std::string(field_of(bytes)).rfind(field, 0) == 0;
}

template <typename T>
std::vector<std::byte> with(std::vector<std::byte> bytes, std::size_t offset, T value) {
    std::memcpy(bytes.data() + offset, &value, sizeof value);
    return bytes;
}

void test_round_trip() {
    for (const bool v_trans : {false, true}) {
        for (const std::size_t n : {1U, 2U, 33U, 100U}) {
            std::vector<std::int32_t> positions(n);
            for (std::size_t i = 0; i < n; ++i) {
                positions[i] =
                    static_cast<std::int32_t>((i * 7) % n + 50);  // cell order is not position order
            }
            const Built built = build(3, positions, v_trans);
            const StateLayout read = nexus::parse_state(built.bytes);
            CHECK(read == built.layout);
            CHECK(read.positions == positions && read.v_trans == v_trans && read.seq_id == 3);
            for (std::size_t l = 0; l < 3; ++l) {
                CHECK(std::memcmp(built.bytes.data() + read.layers[l].k_offset, built.keys.pointers[l],
                                  n * kKeyWidth * sizeof(Half)) == 0);
                std::vector<Half> rows(n * kValueWidth);
                nexus::read_value_rows(built.bytes, read, l, rows.data());
                CHECK(std::memcmp(rows.data(), built.values.pointers[l], rows.size() * sizeof(Half)) == 0);
            }
        }
    }
}

void test_an_empty_sequence() {
    const Built built = build(2, {}, false);
    CHECK(built.bytes.size() == 16);
    const StateLayout read = nexus::parse_state(built.bytes);
    CHECK(read.n_cells() == 0 && read.layers.empty());
    std::vector<std::byte> out(100);
    const std::vector<std::int32_t> one = {0};
    CHECK(nexus::testing::throws<std::invalid_argument>([&] { nexus::build_state(read, one, {}, {}, out); }));
}

void test_positions_in_place() {
    Built built = build(1, {4, 5, 6}, true);
    const std::vector<std::int32_t> moved = {10, 11, 12};
    nexus::write_positions(built.bytes, built.layout, moved);
    CHECK(nexus::parse_state(built.bytes).positions == moved);
    CHECK(nexus::testing::throws<std::invalid_argument>(
        [&] { nexus::write_positions(built.bytes, built.layout, std::vector<std::int32_t>{1}); }));
    built.bytes.pop_back();
    CHECK(nexus::testing::throws<FormatError>(
        [&] { nexus::write_positions(built.bytes, built.layout, moved); }));
}

void test_what_is_not_known_is_refused_by_name() {
    const auto bytes = build(2, {0, 1}, false).bytes;
    const auto transposed = build(2, {0, 1}, true).bytes;
    constexpr std::size_t kAfterCells = 16 + 2 * 12;
    CHECK(refused_as(with(bytes, 0, 0x12345678), "magic"));
    CHECK(refused_as(with(bytes, 8, 2), "n_stream"));
    CHECK(refused_as(with(bytes, 12, 0x7FFFFFFF), "cell_count"));
    CHECK(refused_as(with(bytes, 16, -1), "position"));
    CHECK(refused_as(with(bytes, 20, 2), "n_seq_id"));
    CHECK(refused_as(with(bytes, 24, 9), "cell_seq_id"));
    CHECK(refused_as(with(bytes, kAfterCells, 2), "v_trans"));
    CHECK(field_of(with(bytes, kAfterCells + 4, 0))[0] != 0);
    CHECK(refused_as(with(bytes, kAfterCells + 4, 0x7FFFFFFF), "n_layer"));
    CHECK(refused_as(with(bytes, kAfterCells + 8, 8), "k_type of layer 0"));  // q8_0
    CHECK(refused_as(with(bytes, kAfterCells + 12, std::uint64_t{7}), "k_row_bytes of layer 0"));
    CHECK(refused_as(with(bytes, kAfterCells + 12, ~std::uint64_t{1}), "k_row_bytes of layer 0"));
    const std::size_t v_head = nexus::parse_state(transposed).layers[1].v_offset - 12;
    CHECK(refused_as(with(transposed, v_head, 0), "v_type of layer 1"));  // f32
    CHECK(refused_as(with(transposed, v_head + 4, 4), "v_element_bytes"));
    CHECK(refused_as(with(transposed, v_head + 8, 0x7FFFFFFF), "n_embd_v of layer 1"));
    CHECK(nexus::testing::throws<FormatError>([&] { nexus::parse_state(bytes, 4); }));
}

void test_trailing_bytes() {
    auto bytes = build(2, {0, 1}, false).bytes;
    auto three = bytes;
    for (int more = 0; more < 2; ++more) {
        three.insert(three.end(), bytes.begin() + 8, bytes.end());
    }
    CHECK(refused_as(three, "sections"));
    bytes.push_back(std::byte{0});
    CHECK(refused_as(bytes, "sections"));
}

// The sections of a sliding-window model: 5 layers, of which the last `sliding` are in the second section.
void test_two_sections() {
    const std::vector<std::int32_t> positions = {7, 3, 9};
    for (const bool v_trans : {false, true}) {
        for (const std::size_t sliding : {1U, 3U, 5U}) {
            Built built = build(5, positions, v_trans, sliding);
            const StateLayout read = nexus::parse_state(built.bytes);
            CHECK(read == built.layout && read.sections.size() == 2 && read.layers.size() == 5);
            CHECK(read.sections[1].n_layer == sliding && read.positions == positions);
            CHECK(nexus::state_size(read, 3) == built.bytes.size() && nexus::state_size(read, 0) == 24);
            const auto before = built.bytes;
            nexus::align_sections(built.bytes);
            CHECK(built.bytes == before);
            nexus::write_positions(built.bytes, read, std::vector<std::int32_t>{1, 2, 4});
            CHECK(nexus::parse_state(built.bytes).positions == std::vector<std::int32_t>({1, 2, 4}));
        }
    }
    CHECK(nexus::parse_state(build(2, {}, false, 1).bytes).sections.size() == 2);
}

// Joins the first section of one state with the second of another.
std::vector<std::byte> joined(const Built& first, const Built& second) {
    auto bytes = first.bytes;
    bytes.resize(first.layout.sections[1].cells_offset - 8);
    bytes.insert(
        bytes.end(),
        second.bytes.begin() + static_cast<std::ptrdiff_t>(second.layout.sections[1].cells_offset) - 8,
        second.bytes.end());
    return bytes;
}

void test_sections_in_another_order_are_aligned() {
    for (const bool v_trans : {false, true}) {
        const Built built = build(3, {7, 3, 9}, v_trans, 2);
        Built turned = build(3, {9, 7, 3}, v_trans, 2);
        auto bytes = joined(built, turned);
        CHECK(refused_as(bytes, "cells of the second section"));
        nexus::align_sections(bytes);
        const StateLayout read = nexus::parse_state(bytes);
        CHECK(read.positions == std::vector<std::int32_t>({7, 3, 9}));
        // Rows 7, 3, 9 of the second state were its rows 1, 2, 0.
        const std::vector<std::size_t> from = {1, 2, 0};
        for (std::size_t l = 0; l < 3; ++l) {
            std::vector<Half> rows(3 * kValueWidth);
            nexus::read_value_rows(bytes, read, l, rows.data());
            const std::byte* keys = bytes.data() + read.layers[l].k_offset;
            for (std::size_t i = 0; i < 3; ++i) {
                const std::size_t source = l == 0 ? i : from[i];
                CHECK(std::memcmp(keys + i * kKeyWidth * sizeof(Half),
                                  built.keys.pointers[l] + source * kKeyWidth,
                                  kKeyWidth * sizeof(Half)) == 0);
                CHECK(std::memcmp(rows.data() + i * kValueWidth,
                                  built.values.pointers[l] + source * kValueWidth,
                                  kValueWidth * sizeof(Half)) == 0);
            }
        }
        auto other = joined(built, build(3, {9, 7, 4}, v_trans, 2));
        CHECK(nexus::testing::throws<FormatError>([&] { nexus::align_sections(other); }));
        auto fewer = joined(built, build(3, {9, 7}, v_trans, 2));
        CHECK(refused_as(fewer, "cells of the second section"));
        CHECK(nexus::testing::throws<FormatError>([&] { nexus::align_sections(fewer); }));
    }
    auto mixed = joined(build(3, {1, 2}, false, 2), build(3, {1, 2}, true, 2));
    CHECK(refused_as(mixed, "v_trans"));
}

void test_truncation_anywhere() {
    for (const bool v_trans : {false, true}) {
        const Built built = build(2, {5, 3, 4}, v_trans, 1);
        const auto& bytes = built.bytes;
        for (std::size_t n = 0; n < bytes.size(); ++n) {
            if (n == built.layout.sections[1].cells_offset - 8) {
                continue;  // the first section alone is a whole state of another model
            }
            // An exact-size copy, so that a sanitizer sees any read past the end.
            const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
            CHECK(field_of(cut)[0] != '\0');
        }
    }
}

// A damaged buffer is refused, or describes something that still lies inside it.
void test_mutations_never_escape_the_buffer() {
    std::mt19937 random(1);
    for (const bool v_trans : {false, true}) {
        for (int round = 0; round < 20000; ++round) {
            auto damaged = build(2, {5, 3, 4}, v_trans, static_cast<std::size_t>(round % 2)).bytes;
            for (std::size_t n = 1 + random() % 4; n > 0; --n) {
                damaged[random() % damaged.size()] = static_cast<std::byte>(random());
            }
            try {
                nexus::align_sections(damaged);
                const StateLayout layout = nexus::parse_state(damaged);
                for (std::size_t l = 0; l < layout.layers.size(); ++l) {
                    std::vector<Half> rows(layout.n_cells() * layout.layers[l].n_embd_v);
                    nexus::read_value_rows(damaged, layout, l, rows.data());
                    CHECK(layout.layers[l].k_offset + layout.n_cells() * layout.layers[l].k_row_bytes <=
                          damaged.size());
                }
            } catch (const FormatError& error) {
                CHECK(!error.field().empty());
            }
        }
    }
}

void test_building_checks_its_arguments() {
    const StateLayout like = family(2, false);
    const Rows keys(2, kKeyWidth, 1);
    const Rows values(2, kValueWidth, 1);
    const std::vector<std::int32_t> one = {0};
    std::vector<std::byte> small(nexus::state_size(like, 1) - 1);
    CHECK(nexus::testing::throws<std::invalid_argument>(
        [&] { nexus::build_state(like, one, keys.pointers, values.pointers, small); }));
    const std::vector<const Half*> missing = {keys.pointers[0]};
    std::vector<std::byte> out(nexus::state_size(like, 1));
    CHECK(nexus::testing::throws<std::invalid_argument>(
        [&] { nexus::build_state(like, one, missing, values.pointers, out); }));
}

}  // namespace

int main() {
    test_round_trip();
    test_an_empty_sequence();
    test_positions_in_place();
    test_what_is_not_known_is_refused_by_name();
    test_trailing_bytes();
    test_two_sections();
    test_sections_in_another_order_are_aligned();
    test_truncation_anywhere();
    test_mutations_never_escape_the_buffer();
    test_building_checks_its_arguments();
    return nexus::testing::finish();
}
