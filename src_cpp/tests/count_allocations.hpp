#pragma once

#include <cstddef>

namespace nexus::testing {

// Calls of operator new so far, in a test that is linked with count_allocations.cpp.
std::size_t n_allocations();

}  // namespace nexus::testing
