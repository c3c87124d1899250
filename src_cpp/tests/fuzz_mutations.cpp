#include "tests/fuzz_mutations.hpp"

#include <algorithm>
#include <cstring>

namespace nexus::fuzz {
namespace {

constexpr std::size_t kMostExtension = 64;
constexpr std::size_t kMostChunk = 40;

std::span<const std::byte> as_bytes_of(const std::uint64_t& number, std::size_t width) {
    return std::as_bytes(std::span(&number, 1)).first(std::min(width, sizeof number));
}

Bytes noise(std::size_t n_bytes, Random& random) {
    Bytes bytes(n_bytes);
    for (std::byte& byte : bytes) {
        byte = static_cast<std::byte>(random.next());
    }
    return bytes;
}

// An offset where something was written, mostly near the start, where the fields are.
std::size_t any_offset(const Sample& sample, Random& random) {
    if (sample.runs.empty() || random.percent(2)) {
        return random.below(sample.size);
    }
    const Run& run = random.percent(70) ? sample.runs.front() : random.of(sample.runs);
    return run.offset + random.below(run.bytes.size());
}

Field any_field(const Sample& sample, Random& random) {
    if (sample.fields.empty() || random.percent(10)) {
        return {any_offset(sample, random), std::size_t{1} << random.below(4)};
    }
    return random.of(sample.fields);
}

std::uint64_t interesting(const Sample& sample, const Field& field, Random& random) {
    static const std::vector<std::uint64_t> kNumbers = {
        0, 1, 2, 3, 4, 7, 8, 16, 31, 32, 64, 127, 128, 255, 256, 4095, 4096, 4097, 0x7FFF, 0x8000, 0xFFFF,
        0x10000, 0x1FFFFF, 0x200000, 0x3FFFFE, 0x400000, 0x400002, 0xFFFFFF, 0x1000000, 0x1000001, 0x3FFFFFFF,
        0x40000000, 0x7FFFFFFE, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF, 1ULL << 32U,
        (1ULL << 32U) + 2, 1ULL << 33U, 1ULL << 62U, ~0ULL >> 1U, 1ULL << 63U, ~0ULL - 1, ~0ULL,
        // As floats: infinities, not a number, -0, the smallest, a negative one.
        0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0x80000000, 1, 0xBF800000};
    const std::uint64_t now = sample.read_number(field);
    switch (random.below(8)) {
        case 0:
            return now + 1 + random.below(8);
        case 1:
            return now - 1 - random.below(8);
        case 2:
            return now << (1 + random.below(16));
        case 3:
            return now >> (1 + random.below(4));
        case 4:
            return sample.read_number(any_field(sample, random));
        case 5:
            return sample.size + random.below(5) - 2;
        default:
            return random.of(kNumbers);
    }
}

void flip_bit(Sample& sample, Random& random) {
    const Field byte{any_offset(sample, random), 1};
    sample.write_number(byte, sample.read_number(byte) ^ (1U << random.below(8)));
}

void swap_fields(Sample& sample, Random& random) {
    const Field one = any_field(sample, random);
    const Field other = any_field(sample, random);
    const std::uint64_t number = sample.read_number(one);
    sample.write_number(one, sample.read_number(other));
    sample.write_number(other, number);
}

void truncate(Sample& sample, Random& random) {
    sample.size = random.percent(50) ? any_offset(sample, random) : random.below(sample.size + 1);
    sample.clip();
}

void extend(Sample& sample, Random& random) {
    const std::size_t end = sample.size;
    const Bytes more = random.percent(30) ? Bytes(1 + random.below(kMostExtension))
                                          : noise(1 + random.below(kMostExtension), random);
    sample.size += more.size();
    sample.write(end, more);
}

// Moves everything from `offset` on.
void shift(Sample& sample, std::size_t offset, std::ptrdiff_t by) {
    std::vector<Run> tails;
    for (Run& run : sample.runs) {
        if (run.offset >= offset) {
            run.offset = static_cast<std::size_t>(static_cast<std::ptrdiff_t>(run.offset) + by);
        } else if (run.offset + run.bytes.size() > offset) {
            const auto cut = run.bytes.begin() + static_cast<std::ptrdiff_t>(offset - run.offset);
            tails.push_back({static_cast<std::size_t>(static_cast<std::ptrdiff_t>(offset) + by),
                             Bytes(cut, run.bytes.end())});
            run.bytes.erase(cut, run.bytes.end());
        }
    }
    sample.runs.insert(sample.runs.end(), tails.begin(), tails.end());
    sample.size = static_cast<std::size_t>(static_cast<std::ptrdiff_t>(sample.size) + by);
}

void insert(Sample& sample, Random& random) {
    const std::size_t offset = any_offset(sample, random);
    const Bytes chunk = random.percent(50) ? noise(1 + random.below(kMostChunk), random)
                                           : sample.read(any_offset(sample, random), 12);
    shift(sample, offset, static_cast<std::ptrdiff_t>(chunk.size()));
    sample.write(offset, chunk);
}

void remove(Sample& sample, Random& random) {
    const std::size_t offset = any_offset(sample, random);
    const std::size_t n = std::min(1 + random.below(kMostChunk), sample.size - offset);
    shift(sample, offset + n, -static_cast<std::ptrdiff_t>(n));
    sample.clip();
}

// Goes on with another file from some place: the same, or any.
void splice(Sample& sample, std::span<const Sample> corpus, Random& random) {
    Sample tail = corpus[random.below(corpus.size())];
    const std::size_t cut = std::min(any_offset(sample, random), sample.size);
    const std::size_t from = random.percent(60) ? std::min(cut, tail.size) : any_offset(tail, random);
    sample.size = cut;
    sample.clip();
    for (Run& run : tail.runs) {
        if (run.offset + run.bytes.size() <= from) {
            continue;
        }
        const std::size_t skip = run.offset < from ? from - run.offset : 0;
        run.bytes.erase(run.bytes.begin(), run.bytes.begin() + static_cast<std::ptrdiff_t>(skip));
        sample.runs.push_back({cut + run.offset + skip - from, std::move(run.bytes)});
    }
    sample.size = cut + (tail.size - from);
}

void mutate_once(Sample& sample, std::span<const Sample> corpus, Random& random) {
    const std::size_t kind = random.below(20);
    if (sample.size == 0) {
        extend(sample, random);
    } else if (kind < 3) {
        flip_bit(sample, random);
    } else if (kind < 5) {
        sample.write(any_offset(sample, random), noise(1, random));
    } else if (kind < 11) {
        const Field field = any_field(sample, random);
        sample.write_number(field, interesting(sample, field, random));
    } else if (kind < 12) {
        swap_fields(sample, random);
    } else if (kind < 13) {
        const std::size_t offset = any_offset(sample, random);
        const std::size_t n = 1 + random.below(kMostChunk);
        sample.write(offset, random.percent(50) ? Bytes(n) : noise(n, random));
    } else if (kind < 14) {
        sample.write(any_offset(sample, random), sample.read(any_offset(sample, random), kMostChunk));
    } else if (kind < 15) {
        truncate(sample, random);
    } else if (kind < 16) {
        extend(sample, random);
    } else if (kind < 17) {
        insert(sample, random);
    } else if (kind < 18) {
        remove(sample, random);
    } else {
        splice(sample, corpus, random);
    }
}

}  // namespace

void Sample::write(std::size_t offset, std::span<const std::byte> bytes) {
    bytes = bytes.first(std::min(bytes.size(), size - std::min(size, offset)));
    if (bytes.empty()) {
        return;
    }
    if (!runs.empty()) {
        Run& last = runs.back();
        if (offset >= last.offset && offset + bytes.size() <= last.offset + last.bytes.size()) {
            std::copy(bytes.begin(), bytes.end(),
                      last.bytes.begin() + static_cast<std::ptrdiff_t>(offset - last.offset));
            return;
        }
    }
    runs.push_back({offset, Bytes(bytes.begin(), bytes.end())});
}

Bytes Sample::read(std::size_t offset, std::size_t n_bytes) const {
    Bytes bytes(std::min(n_bytes, size - std::min(size, offset)));
    for (const Run& run : runs) {
        const std::size_t start = std::max(offset, run.offset);
        const std::size_t stop = std::min(offset + bytes.size(), run.offset + run.bytes.size());
        if (start < stop) {
            std::memcpy(bytes.data() + (start - offset), run.bytes.data() + (start - run.offset),
                        stop - start);
        }
    }
    return bytes;
}

std::uint64_t Sample::read_number(const Field& field) const {
    std::uint64_t number = 0;
    const Bytes bytes = read(field.offset, std::min(field.width, sizeof number));
    std::ranges::copy(bytes, std::as_writable_bytes(std::span(&number, 1)).begin());
    return number;
}

void Sample::write_number(const Field& field, std::uint64_t number) {
    write(field.offset, as_bytes_of(number, field.width));
}

void Sample::clip() {
    std::erase_if(runs, [this](const Run& run) { return run.offset >= size; });
    for (Run& run : runs) {
        run.bytes.resize(std::min(run.bytes.size(), size - run.offset));
    }
}

Sample sample_of(Bytes bytes, std::vector<Field> fields) {
    Sample sample;
    sample.size = bytes.size();
    sample.fields = std::move(fields);
    sample.runs.push_back({0, std::move(bytes)});
    return sample;
}

void mutate(Sample& sample, std::span<const Sample> corpus, Random& random) {
    mutate_once(sample, corpus, random);
    while (random.percent(35)) {
        mutate_once(sample, corpus, random);
    }
}

}  // namespace nexus::fuzz
