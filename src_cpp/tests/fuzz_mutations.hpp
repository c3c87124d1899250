#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace nexus::fuzz {

// SplitMix64: cheap to seed, so that every case has a generator of its own and can be run again alone.
class Random {
  public:
    Random(std::uint64_t seed, std::uint64_t index) noexcept
        : state_(seed * 0x9E3779B97F4A7C15U ^ (index + 1) * 0xD1B54A32D192ED03U) {}

    std::uint64_t next() noexcept {
        state_ += 0x9E3779B97F4A7C15U;
        std::uint64_t mixed = state_;
        mixed = (mixed ^ (mixed >> 30U)) * 0xBF58476D1CE4E5B9U;
        mixed = (mixed ^ (mixed >> 27U)) * 0x94D049BB133111EBU;
        return mixed ^ (mixed >> 31U);
    }
    // 0 to n - 1; 0 for n = 0.
    std::size_t below(std::size_t n) noexcept { return n == 0 ? 0 : next() % n; }
    bool percent(unsigned chance) noexcept { return below(100) < chance; }
    template <typename T>
    const T& of(const std::vector<T>& choices) noexcept {
        return choices[below(choices.size())];
    }

  private:
    std::uint64_t state_;
};

using Bytes = std::vector<std::byte>;

// An integer of the format: where it is, and how long.
struct Field {
    std::size_t offset = 0;
    std::size_t width = 0;
};

struct Run {
    std::size_t offset = 0;
    Bytes bytes;
};

// A file as its runs over zeros, since most of a block file is holes. A later run lies over an earlier one.
struct Sample {
    std::vector<Run> runs;
    std::size_t size = 0;
    std::vector<Field> fields;

    void write(std::size_t offset, std::span<const std::byte> bytes);
    // What lies at `offset`; zeros outside the runs.
    [[nodiscard]] Bytes read(std::size_t offset, std::size_t n_bytes) const;
    [[nodiscard]] std::uint64_t read_number(const Field& field) const;
    void write_number(const Field& field, std::uint64_t number);
    // Drops and cuts runs that pass the end.
    void clip();
};

Sample sample_of(Bytes bytes, std::vector<Field> fields);

// Changes `sample` in one to four ways. `corpus` gives the bytes for splices.
void mutate(Sample& sample, std::span<const Sample> corpus, Random& random);

}  // namespace nexus::fuzz
