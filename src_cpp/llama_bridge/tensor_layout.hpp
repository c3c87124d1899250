#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace nexus::bridge {

// The part of llama.cpp's `ggml_tensor` that the callbacks read. It is no stable ABI, so nothing touches it
// before `verify_layout` has compared every member with what the library's own getters answer.
struct Tensor {
    static constexpr std::size_t dimensions = 4;
    static constexpr std::size_t sources = 10;
    static constexpr std::size_t name_bytes = 64;
    static constexpr std::size_t op_words = 16;

    std::int32_t type;
    void* buffer;
    std::array<std::int64_t, dimensions> ne;
    std::array<std::size_t, dimensions> nb;
    std::int32_t op;
    std::array<std::int32_t, op_words> op_params;
    std::int32_t flags;
    std::array<Tensor*, sources> src;
    Tensor* view_src;
    std::size_t view_offs;
    void* data;
    std::array<char, name_bytes> name;
    void* extra;
};

// Numbers of ggml's element types that the bridge reads or writes; checked through `type_size`.
enum class ElementType : std::int32_t { f32 = 0, f16 = 1, i32 = 26, i64 = 27 };

// Argument of `ggml_init`.
struct InitParameters {
    std::size_t memory_bytes;
    void* memory;
    bool no_alloc;
};

// Addresses of public ggml functions, looked up in the loaded library by the caller.
struct Library {
    const char* (*get_name)(const Tensor*) = nullptr;
    Tensor* (*set_name)(Tensor*, const char*) = nullptr;
    std::int64_t (*count_elements)(const Tensor*) = nullptr;
    std::int64_t (*count_rows)(const Tensor*) = nullptr;
    std::size_t (*count_bytes)(const Tensor*) = nullptr;
    void* (*get_data)(const Tensor*) = nullptr;
    std::size_t (*type_size)(std::int32_t) = nullptr;
    std::size_t (*element_size)(const Tensor*) = nullptr;
    std::size_t (*tensor_overhead)() = nullptr;
    void* (*init)(InitParameters) = nullptr;
    void (*free)(void*) = nullptr;
    Tensor* (*new_tensor_4d)(void*, std::int32_t, std::int64_t, std::int64_t, std::int64_t,
                             std::int64_t) = nullptr;
    Tensor* (*view_1d)(void*, Tensor*, std::int64_t, std::size_t) = nullptr;
    Tensor* (*add)(void*, Tensor*, Tensor*) = nullptr;
    bool (*buffer_is_host)(void*) = nullptr;
    void* (*buffer_get_base)(void*) = nullptr;
    std::size_t (*buffer_get_size)(void*) = nullptr;
    void (*buffer_free)(void*) = nullptr;
    void* (*cpu_buffer_type)() = nullptr;
    void* (*alloc_ctx_tensors)(void*, void*) = nullptr;
    void (*tensor_get)(const Tensor*, void*, std::size_t, std::size_t) = nullptr;
};

// Builds real tensors through the public API and compares the mirror with them, member by member.
// Returns the empty string, or the first difference.
std::string verify_layout(const Library& library);

// Compares one tensor of a live graph, and its sources, with the getters. Same answer as `verify_layout`.
std::string verify_tensor(const Library& library, const Tensor& tensor);

}  // namespace nexus::bridge
