#pragma once

#include <cstddef>

namespace nexus::testing {

// Calls of operator new so far, in a test that is linked with count_allocations.cpp.
std::size_t n_allocations();
// Bytes that those calls asked for, whatever was freed since.
std::size_t n_allocated_bytes();

}  // namespace nexus::testing
