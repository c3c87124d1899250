#pragma once

#include <cstddef>
#include <mutex>

namespace nexus {

// Two 64-byte lines: adjacent-line prefetch on x86 makes neighbours share, and Apple's lines are this long.
constexpr std::size_t kContentionLine = 128;

// A mutex that several threads fight for, alone on its lines, so that waiting for it does not slow down who
// works on the data beside it.
struct alignas(kContentionLine) ContendedMutex {
    std::mutex mutex;
};

static_assert(alignof(ContendedMutex) == kContentionLine, "the mutex starts a line of its own");
static_assert(sizeof(ContendedMutex) == kContentionLine, "and nothing follows it on that line");

}  // namespace nexus
