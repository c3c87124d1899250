// Replaces the program's operator new by one that counts.

#include "tests/count_allocations.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> allocations{0};
std::atomic<std::size_t> allocated_bytes{0};

}  // namespace

std::size_t nexus::testing::n_allocations() { return allocations.load(); }
std::size_t nexus::testing::n_allocated_bytes() { return allocated_bytes.load(); }

void* operator new(std::size_t n_bytes, const std::nothrow_t& /*quiet*/) noexcept {
    ++allocations;
    allocated_bytes += n_bytes;
    return std::malloc(n_bytes == 0 ? 1 : n_bytes);
}

void* operator new(std::size_t n_bytes) {
    if (void* memory = operator new(n_bytes, std::nothrow)) {
        return memory;
    }
    throw std::bad_alloc();
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*n_bytes*/) noexcept { std::free(memory); }
