#include "core/version.hpp"

namespace nexus {

std::string_view core_version() noexcept { return "0.1.0"; }

}  // namespace nexus
