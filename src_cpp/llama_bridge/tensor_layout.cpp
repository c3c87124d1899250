#include "llama_bridge/tensor_layout.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <string>

namespace nexus::bridge {
namespace {

// Prime extents: no two members, products or strides can be mistaken for one another.
constexpr std::array<std::int64_t, Tensor::dimensions> probe_extents{7, 5, 3, 2};
constexpr std::size_t probe_memory = 1U << 16U;
constexpr std::size_t object_header_bytes = 32;

std::string difference(const char* member) { return std::string("ggml_tensor.") + member; }

bool element_sizes_hold(const Library& library) {
    const auto size = [&](ElementType type) { return library.type_size(static_cast<std::int32_t>(type)); };
    return size(ElementType::f32) == sizeof(float) && size(ElementType::f16) == sizeof(std::uint16_t) &&
           size(ElementType::i32) == sizeof(std::int32_t) && size(ElementType::i64) == sizeof(std::int64_t);
}

std::string check_fresh_tensor(const Library& library, const Tensor& tensor, ElementType type) {
    if (tensor.type != static_cast<std::int32_t>(type)) {
        return difference("type");
    }
    if (tensor.ne != probe_extents) {
        return difference("ne");
    }
    std::size_t stride = library.type_size(tensor.type);
    for (std::size_t axis = 0; axis < Tensor::dimensions; ++axis) {
        if (tensor.nb.at(axis) != stride) {
            return difference("nb");
        }
        stride *= static_cast<std::size_t>(probe_extents.at(axis));
    }
    if (tensor.view_src != nullptr || tensor.view_offs != 0) {
        return difference("view_src");
    }
    const bool has_source = std::any_of(tensor.src.begin(), tensor.src.end(),
                                        [](const Tensor* source) { return source != nullptr; });
    return has_source ? difference("src") : verify_tensor(library, tensor);
}

std::string check_sum(const Tensor& sum, const Tensor* left, const Tensor* right) {
    if (sum.src.at(0) != left || sum.src.at(1) != right) {
        return difference("src");
    }
    return sum.op == left->op ? difference("op") : "";
}

std::string check_view(const Tensor& view, const Tensor* whole, std::size_t offset) {
    if (view.view_src != whole) {
        return difference("view_src");
    }
    if (view.view_offs != offset) {
        return difference("view_offs");
    }
    return "";
}

// The buffer member can only be seen once memory has been given to a tensor.
std::string check_buffer(const Library& library, void* context, const Tensor& tensor) {
    void* buffer = library.alloc_ctx_tensors(context, library.cpu_buffer_type());
    if (buffer == nullptr) {
        return difference("buffer");
    }
    std::string found;
    if (tensor.buffer != buffer) {
        found = difference("buffer");
    } else if (tensor.data != library.get_data(&tensor) || tensor.data == nullptr) {
        found = difference("data");
    } else if (!library.buffer_is_host(buffer)) {
        found = "ggml_backend_buffer_is_host";
    }
    library.buffer_free(buffer);
    return found;
}

std::string check_context(const Library& library, void* context) {
    Tensor* left =
        library.new_tensor_4d(context, static_cast<std::int32_t>(ElementType::f32), probe_extents[0],
                              probe_extents[1], probe_extents[2], probe_extents[3]);
    Tensor* right =
        library.new_tensor_4d(context, static_cast<std::int32_t>(ElementType::i64), probe_extents[0],
                              probe_extents[1], probe_extents[2], probe_extents[3]);
    if (left == nullptr || right == nullptr) {
        return "ggml_new_tensor_4d";
    }
    library.set_name(left, "nexus_probe");
    if (auto found = check_fresh_tensor(library, *left, ElementType::f32); !found.empty()) {
        return found;
    }
    if (auto found = check_fresh_tensor(library, *right, ElementType::i64); !found.empty()) {
        return found;
    }
    const std::size_t offset = 3 * sizeof(float);
    const Tensor* view = library.view_1d(context, left, probe_extents[1], offset);
    if (auto found = check_view(*view, left, offset); !found.empty()) {
        return found;
    }
    const Tensor* sum = library.add(context, left, left);
    if (auto found = check_sum(*sum, left, left); !found.empty()) {
        return found;
    }
    return check_buffer(library, context, *left);
}

}  // namespace

std::string verify_tensor(const Library& library, const Tensor& tensor) {
    // `ggml_get_name` answers the address of the member itself, so equality pins its offset.
    if (tensor.name.data() != library.get_name(&tensor)) {
        return difference("name");
    }
    if (tensor.data != library.get_data(&tensor)) {
        return difference("data");
    }
    const auto elements =
        std::accumulate(tensor.ne.begin(), tensor.ne.end(), std::int64_t{1}, std::multiplies<>());
    if (elements != library.count_elements(&tensor)) {
        return difference("ne");
    }
    if (tensor.ne[1] * tensor.ne[2] * tensor.ne[3] != library.count_rows(&tensor)) {
        return difference("ne");
    }
    if (library.type_size(tensor.type) != library.element_size(&tensor)) {
        return difference("type");
    }
    return "";
}

std::string verify_layout(const Library& library) {
    if (!element_sizes_hold(library)) {
        return "ggml_type";
    }
    // The library adds its own padding at the end; a shorter struct means other members.
    if (library.tensor_overhead() < object_header_bytes + sizeof(Tensor)) {
        return "sizeof(ggml_tensor)";
    }
    const std::unique_ptr<void, void (*)(void*)> context(
        library.init(InitParameters{.memory_bytes = probe_memory, .memory = nullptr, .no_alloc = true}),
        library.free);
    if (context == nullptr) {
        return "ggml_init";
    }
    return check_context(library, context.get());
}

}  // namespace nexus::bridge
