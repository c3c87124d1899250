#pragma once

#include <string_view>

namespace nexus {

// Version of the native core's interface; the Python side refuses another one.
std::string_view core_version() noexcept;

}  // namespace nexus
