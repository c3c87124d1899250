// The bridge against a library made of the mirror itself, so that it runs without llama.cpp.

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "llama_bridge/eval_bridge.hpp"

using nexus::bridge::ElementType;
using nexus::bridge::EvalBridge;
using nexus::bridge::InitParameters;
using nexus::bridge::Library;
using nexus::bridge::Plan;
using nexus::bridge::PositionRange;
using nexus::bridge::Tensor;

namespace {

int failures = 0;

void check(bool condition, const char* what, int line) {
    if (!condition) {
        ++failures;
        (void)std::fprintf(stderr, "line %d: %s\n", line, what);
    }
}
#define CHECK(condition) check((condition), #condition, __LINE__)

std::size_t size_of(std::int32_t type) {
    switch (static_cast<ElementType>(type)) {
        case ElementType::f16:
            return 2;
        case ElementType::i64:
            return 8;
        default:
            return 4;
    }
}

// One buffer that every tensor's data lies in.
struct Buffer {
    alignas(64) std::array<std::byte, 1U << 16U> memory{};
    std::size_t used = 0;
    bool host = true;
};

// Owns the tensors of a context or a graph.
struct Arena {
    std::deque<Tensor> tensors;
    Buffer buffer;

    Tensor* make(ElementType type, std::array<std::int64_t, 4> extents, const char* name) {
        Tensor& tensor = tensors.emplace_back();
        tensor.type = static_cast<std::int32_t>(type);
        tensor.ne = extents;
        std::size_t stride = size_of(tensor.type);
        for (std::size_t axis = 0; axis < extents.size(); ++axis) {
            tensor.nb.at(axis) = stride;
            stride *= static_cast<std::size_t>(extents.at(axis));
        }
        std::strncpy(tensor.name.data(), name, tensor.name.size() - 1);
        return &tensor;
    }

    Tensor* with_data(ElementType type, std::array<std::int64_t, 4> extents, const char* name) {
        Tensor* tensor = make(type, extents, name);
        tensor->buffer = &buffer;
        tensor->data = buffer.memory.data() + buffer.used;
        buffer.used += (tensor->nb[3] * static_cast<std::size_t>(extents[3]) + 63) / 64 * 64;
        return tensor;
    }
};

std::int64_t elements_of(const Tensor* tensor) {
    return std::accumulate(tensor->ne.begin(), tensor->ne.end(), std::int64_t{1}, std::multiplies<>());
}

Library honest_library() {
    Library library;
    library.get_name = [](const Tensor* t) { return static_cast<const char*>(t->name.data()); };
    library.set_name = [](Tensor* t, const char* name) {
        std::strncpy(t->name.data(), name, t->name.size() - 1);
        return t;
    };
    library.count_elements = elements_of;
    library.count_rows = [](const Tensor* t) { return t->ne[1] * t->ne[2] * t->ne[3]; };
    library.count_bytes = [](const Tensor* t) {
        return static_cast<std::size_t>(elements_of(t)) * size_of(t->type);
    };
    library.get_data = [](const Tensor* t) { return t->data; };
    library.type_size = size_of;
    library.element_size = [](const Tensor* t) { return size_of(t->type); };
    library.tensor_overhead = [] { return sizeof(Tensor) + 32; };
    library.init = [](InitParameters) { return static_cast<void*>(new Arena); };
    library.free = [](void* context) { delete static_cast<Arena*>(context); };
    library.new_tensor_4d = [](void* context, std::int32_t type, std::int64_t a, std::int64_t b,
                               std::int64_t c, std::int64_t d) {
        return static_cast<Arena*>(context)->make(static_cast<ElementType>(type), {a, b, c, d}, "");
    };
    library.view_1d = [](void* context, Tensor* whole, std::int64_t n, std::size_t offset) {
        Tensor* view =
            static_cast<Arena*>(context)->make(static_cast<ElementType>(whole->type), {n, 1, 1, 1}, "");
        view->view_src = whole;
        view->view_offs = offset;
        return view;
    };
    library.add = [](void* context, Tensor* left, Tensor* right) {
        Tensor* sum = static_cast<Arena*>(context)->make(static_cast<ElementType>(left->type), left->ne, "");
        sum->op = 2;
        sum->src[0] = left;
        sum->src[1] = right;
        return sum;
    };
    library.buffer_is_host = [](void* buffer) { return static_cast<Buffer*>(buffer)->host; };
    library.buffer_get_base = [](void* buffer) {
        return static_cast<void*>(static_cast<Buffer*>(buffer)->memory.data());
    };
    library.buffer_get_size = [](void* buffer) { return static_cast<Buffer*>(buffer)->memory.size(); };
    library.buffer_free = [](void*) {};
    library.cpu_buffer_type = [] { return static_cast<void*>(nullptr); };
    library.alloc_ctx_tensors = [](void* context, void*) {
        auto& arena = *static_cast<Arena*>(context);
        for (Tensor& tensor : arena.tensors) {
            tensor.buffer = &arena.buffer;
            tensor.data = arena.buffer.memory.data();
        }
        return static_cast<void*>(&arena.buffer);
    };
    library.tensor_get = [](const Tensor* t, void* target, std::size_t offset, std::size_t bytes) {
        std::memcpy(target, static_cast<const std::byte*>(t->data) + offset, bytes);
    };
    return library;
}

constexpr std::int64_t n_cells = 8;
constexpr std::int64_t cache_length = 20;

// A graph of one layer: rotation, store, attention; the sequence holds cells 1, 2, 5 and the call fills 3, 6.
struct Graph {
    Arena arena;
    Tensor* positions = arena.with_data(ElementType::i32, {2, 1, 1, 1}, "inp_pos");
    Tensor* destinations = arena.with_data(ElementType::i64, {2, 1, 1, 1}, "attn_inp_k_idxs");
    Tensor* value_destinations;
    Tensor* mask;
    Tensor* rope = arena.with_data(ElementType::f32, {4, 1, 1, 1}, "Qcur-0");
    Tensor* store = arena.with_data(ElementType::f32, {4, 1, 1, 1}, "cache_k-0");
    Tensor* store_values = arena.with_data(ElementType::f32, {4, 1, 1, 1}, "cache_v-0");
    Tensor* attention = arena.with_data(ElementType::f32, {n_cells, 2, 3, 1}, "kq_soft_max-0");

    // Values are stored in rows when `value_width` is 1, and else transposed.
    explicit Graph(ElementType mask_type = ElementType::f32, std::int64_t value_width = 1)
        : value_destinations(
              arena.with_data(ElementType::i64, {2 * value_width, 1, 1, 1}, "attn_inp_v_idxs")),
          mask(arena.with_data(mask_type, {n_cells, 2, 1, 1}, "attn_inp_kq_mask")) {
        rope->src[1] = positions;
        store->src[1] = destinations;
        store_values->src[1] = value_destinations;
        attention->src[1] = mask;
        auto* place = static_cast<std::int32_t*>(positions->data);
        place[0] = 10;
        place[1] = 11;
        auto* cell = static_cast<std::int64_t*>(destinations->data);
        cell[0] = 3;
        cell[1] = 6;
        set_value_destinations(value_width, {3, 6});
        for (std::int64_t query = 0; query < 2; ++query) {
            for (std::int64_t c = 0; c < n_cells; ++c) {
                const bool seen = c == 1 || c == 2 || c == 5 || c == 3 || (c == 6 && query == 1);
                set_mask(query, c, seen);
            }
        }
        auto* rows = static_cast<float*>(attention->data);
        for (int i = 0; i < n_cells * 2 * 3; ++i) {
            rows[i] = static_cast<float>(i);
        }
    }

    void set_value_destinations(std::int64_t width, std::array<std::int64_t, 2> cells) const {
        auto* places = static_cast<std::int64_t*>(value_destinations->data);
        for (const auto cell : cells) {
            for (std::int64_t element = 0; element < width; ++element) {
                *places++ = cell + element * cache_length;
            }
        }
    }

    [[nodiscard]] std::vector<std::int64_t> values_of(const Tensor* tensor) const {
        const auto* first = static_cast<const std::int64_t*>(tensor->data);
        return {first, first + tensor->ne[0]};
    }

    void set_mask(std::int64_t query, std::int64_t cell, bool seen) {
        const auto index = static_cast<std::size_t>(query * n_cells + cell);
        if (mask->type == static_cast<std::int32_t>(ElementType::f32)) {
            static_cast<float*>(mask->data)[index] = seen ? 0.0F : -std::numeric_limits<float>::infinity();
        } else {
            static_cast<std::uint16_t*>(mask->data)[index] = seen ? 0 : 0xFC00;
        }
    }

    [[nodiscard]] std::vector<std::int64_t> seen_by(std::int64_t query) const {
        std::vector<std::int64_t> cells;
        for (std::int64_t c = 0; c < n_cells; ++c) {
            const auto index = static_cast<std::size_t>(query * n_cells + c);
            const bool seen = mask->type == static_cast<std::int32_t>(ElementType::f32)
                                  ? std::isfinite(static_cast<const float*>(mask->data)[index])
                                  : static_cast<const std::uint16_t*>(mask->data)[index] == 0;
            if (seen) {
                cells.push_back(c);
            }
        }
        return cells;
    }

    // Shows the nodes as the scheduler does: asks, then runs up to a node that was wanted.
    void run(EvalBridge& bridge) {
        for (Tensor* node : {rope, store, store_values, attention}) {
            if (EvalBridge::on_node(node, true, &bridge)) {
                EvalBridge::on_node(node, false, &bridge);
            }
        }
    }
};

Plan plan_for_graph() {
    Plan plan;
    plan.n_tokens = 2;
    plan.first_position = 10;
    plan.cell_positions = {4, 7, 5};  // cells 1, 2, 5
    plan.map_cells = true;
    return plan;
}

void test_layout() {
    CHECK(nexus::bridge::verify_layout(honest_library()).empty());
    auto library = honest_library();
    library.get_name = [](const Tensor* t) { return static_cast<const char*>(t->name.data()) + 8; };
    CHECK(nexus::bridge::verify_layout(library) == "ggml_tensor.name");
    library = honest_library();
    library.count_rows = [](const Tensor* t) { return t->ne[0]; };
    CHECK(nexus::bridge::verify_layout(library) == "ggml_tensor.ne");
    library = honest_library();
    library.tensor_overhead = [] { return sizeof(Tensor); };
    CHECK(nexus::bridge::verify_layout(library) == "sizeof(ggml_tensor)");
    library = honest_library();
    library.buffer_is_host = [](void*) { return false; };
    CHECK(!nexus::bridge::verify_layout(library).empty());
    EvalBridge broken(library);
    CHECK(!broken.layout_problem().empty());
    Graph graph;
    broken.arm(plan_for_graph());
    graph.run(broken);
    CHECK(graph.seen_by(1).size() == 5);
}

void test_idle_answers_false_and_checks_the_first_graph() {
    EvalBridge bridge(honest_library());
    Graph graph;
    CHECK(!EvalBridge::on_node(graph.rope, true, &bridge));
    CHECK(!bridge.first_graph_checked());
    graph.run(bridge);
    CHECK(bridge.first_graph_checked());
    CHECK(bridge.layout_problem().empty());
    CHECK(static_cast<std::int32_t*>(graph.positions->data)[0] == 10);
}

template <ElementType Type>
void test_patches() {
    EvalBridge bridge(honest_library());
    Graph graph(Type);
    auto plan = plan_for_graph();
    plan.positions = {4, 90};
    plan.hidden_offsets = {0, 1, 3};
    plan.hidden = {PositionRange{5, 6}, PositionRange{4, 6}, PositionRange{10, 11}};
    bridge.arm(std::move(plan));
    graph.run(bridge);
    const auto report = bridge.disarm();
    CHECK(report.problem.empty());
    CHECK(report.graphs == 1);
    CHECK(report.n_kv == n_cells);
    CHECK((report.destination_cells == std::vector<std::int64_t>{3, 6}));
    CHECK((report.earlier_cells == std::vector<std::int64_t>{1, 2, 5}));
    CHECK(static_cast<std::int32_t*>(graph.positions->data)[0] == 4);
    CHECK(static_cast<std::int32_t*>(graph.positions->data)[1] == 90);
    CHECK((graph.seen_by(0) == std::vector<std::int64_t>{1, 2, 3}));
    CHECK((graph.seen_by(1) == std::vector<std::int64_t>{2, 6}));
}

// The sequence holds positions 4, 5 and 7 in cells 1, 5 and 2; 4 and 7 are written over.
Plan plan_in_place() {
    auto plan = plan_for_graph();
    plan.positions = {4, 7};
    plan.in_place = true;
    return plan;
}

template <ElementType Type, std::int64_t ValueWidth>
void test_rows_written_in_place() {
    EvalBridge bridge(honest_library());
    Graph graph(Type, ValueWidth);
    bridge.arm(plan_in_place());
    graph.run(bridge);
    const auto report = bridge.disarm();
    CHECK(report.problem.empty());
    CHECK((report.destination_cells == std::vector<std::int64_t>{3, 6}));
    CHECK((report.rewritten_cells == std::vector<std::int64_t>{1, 2}));
    CHECK((graph.values_of(graph.destinations) == std::vector<std::int64_t>{1, 2}));
    const auto places = graph.values_of(graph.value_destinations);
    graph.set_value_destinations(ValueWidth, {1, 2});
    CHECK(places == graph.values_of(graph.value_destinations));
    CHECK(static_cast<std::int32_t*>(graph.positions->data)[1] == 7);
    CHECK((graph.seen_by(0) == std::vector<std::int64_t>{1}));
    CHECK((graph.seen_by(1) == std::vector<std::int64_t>{1, 2, 5}));
}

template <typename Change>
std::string problem_in_place(Change change, bool moved = false) {
    EvalBridge bridge(honest_library());
    Graph graph(ElementType::f32, 3);
    auto plan = plan_in_place();
    change(graph, plan);
    bridge.arm(std::move(plan));
    graph.run(bridge);
    CHECK((graph.values_of(graph.destinations) == std::vector<std::int64_t>{3, 6}) != moved);
    return bridge.disarm().problem;
}

// Rows that cannot go to their places stay in the call's own cells, so that no held row is lost.
void test_places_that_do_not_fit_are_told() {
    const auto told = [](const std::string& problem, const char* part) {
        return problem.find(part) != std::string::npos;
    };
    CHECK(problem_in_place([](Graph&, Plan&) {}, true).empty());
    CHECK(told(problem_in_place([](Graph&, Plan& p) { p.positions = {4, 6}; }), "no row at position 6"));
    CHECK(told(problem_in_place([](Graph&, Plan& p) { p.positions = {3, 7}; }), "no row at position 3"));
    CHECK(told(problem_in_place([](Graph& g, Plan&) {
                   g.set_value_destinations(3, {3, 7});
               }),
               "other cells"));
    CHECK(told(problem_in_place(
                   [](Graph& g, Plan&) { static_cast<std::int64_t*>(g.value_destinations->data)[5] += 1; }),
               "other cells"));
    CHECK(told(problem_in_place([](Graph& g, Plan&) {
                   auto* places = static_cast<std::int64_t*>(g.value_destinations->data);
                   for (int i = 0; i < 6; ++i) {
                       places[i] = (i < 3 ? 3 : 6) + i % 3;  // elements of one cell in the next cells
                   }
               }),
               "other cells"));
    CHECK(told(problem_in_place([](Graph& g, Plan&) { g.value_destinations->ne[0] = 5; }), "as many cells"));
    CHECK(told(problem_in_place([](Graph& g, Plan&) { g.value_destinations->type = 0; }), "type or size"));
    CHECK(told(problem_in_place([](Graph& g, Plan&) { g.value_destinations->name[0] = 'x'; }), "no input"));
    CHECK(told(problem_in_place([](Graph& g, Plan&) { static_cast<float*>(g.mask->data)[2] = -3.0F; }),
               "distances"));
}

void test_scaled_attention_is_told() {
    const auto problem_with = [](float scale) {
        return problem_in_place(
            [scale](Graph& graph, Plan&) {
                Tensor* steps = graph.arena.with_data(ElementType::f32, {1, 1, 2, 1}, "inp_attn_scale");
                static_cast<float*>(steps->data)[0] = 1.0F;
                static_cast<float*>(steps->data)[1] = scale;
                graph.rope->src[2] = steps;
            },
            scale == 1.0F);
    };
    CHECK(problem_with(1.0F).empty());
    CHECK(problem_with(1.5F).find("scales attention") != std::string::npos);
}

void test_captures() {
    EvalBridge bridge(honest_library());
    Graph graph;
    auto plan = plan_for_graph();
    std::vector<float> rows(30, -1.0F);
    plan.capture_layers = {0};
    plan.capture_first = 1;
    plan.capture_last = 2;
    plan.capture_buffer = rows;
    plan.capture_heads = 3;
    plan.capture_cells = 10;
    bridge.arm(std::move(plan));
    graph.run(bridge);
    const auto report = bridge.disarm();
    CHECK(report.problem.empty());
    CHECK((report.captured_layers == std::vector<std::int32_t>{0}));
    for (std::size_t head = 0; head < 3; ++head) {
        CHECK(rows[head * 10] == static_cast<float>(head * 16 + 8));
        CHECK(rows[head * 10 + 7] == static_cast<float>(head * 16 + 15));
        CHECK(rows[head * 10 + 8] == -1.0F);
    }
}

template <typename Change>
std::string problem_after(Change change) {
    EvalBridge bridge(honest_library());
    Graph graph;
    auto plan = plan_for_graph();
    plan.positions = {1, 2};
    plan.hidden_offsets = {0, 0, 1};
    plan.hidden = {PositionRange{0, 9}};
    change(graph, plan);
    bridge.arm(std::move(plan));
    graph.run(bridge);
    return bridge.disarm().problem;
}

void test_problems_are_told() {
    CHECK(problem_after([](Graph&, Plan&) {}).empty());
    const auto told = [](const std::string& problem, const char* part) {
        return problem.find(part) != std::string::npos;
    };
    CHECK(told(problem_after([](Graph& g, Plan&) { g.arena.buffer.host = false; }), "host memory"));
    CHECK(told(problem_after([](Graph& g, Plan&) { g.positions->ne[0] = 3; }), "one position per token"));
    CHECK(told(problem_after([](Graph& g, Plan&) { g.positions->name[0] = 'x'; }), "no input named"));
    CHECK(told(problem_after([](Graph& g, Plan&) { g.mask->ne = {n_cells, 1, 1, 2}; }), "one row per token"));
    CHECK(told(problem_after([](Graph& g, Plan&) { g.positions->type = 0; }), "type or size"));
    CHECK(told(problem_after([](Graph&, Plan& p) { p.cell_positions.pop_back(); }), "other cells"));
    CHECK(told(problem_after([](Graph& g, Plan&) { g.rope->src[0] = g.mask; }), "before the destination"));
    CHECK(told(problem_after([](Graph&, Plan& p) {
                   p.capture_layers = {4};
                   p.capture_last = 1;
                   p.capture_heads = p.capture_cells = 1;
                   static std::vector<float> row(1);
                   p.capture_buffer = row;
               }),
               "some of the layers"));
    EvalBridge bridge(honest_library());
    Graph graph;
    bridge.arm(plan_for_graph());
    graph.run(bridge);
    graph.run(bridge);
    CHECK(told(bridge.disarm().problem, "more than one graph"));
}

void test_plans_that_contradict_themselves() {
    const auto refused = [](auto change) {
        EvalBridge bridge(honest_library());
        auto plan = plan_for_graph();
        change(plan);
        try {
            bridge.arm(std::move(plan));
        } catch (const std::invalid_argument&) {
            return true;
        }
        return false;
    };
    CHECK(!refused([](Plan&) {}));
    CHECK(refused([](Plan& p) { p.n_tokens = 0; }));
    CHECK(refused([](Plan& p) { p.positions = {1}; }));
    CHECK(refused([](Plan& p) { p.hidden_offsets = {0, 1}; }));
    CHECK(refused([](Plan& p) { p.hidden_offsets = {0, 1, 0}; }));
    CHECK(refused([](Plan& p) { p.hidden = {PositionRange{0, 1}}; }));
    CHECK(refused([](Plan& p) { p.capture_layers = {0}; }));
    CHECK(refused([](Plan& p) { p.in_place = true; }));
    CHECK(!refused([](Plan& p) { p = plan_in_place(); }));
    CHECK(refused([](Plan& p) { (p = plan_in_place()).positions = {7, 7}; }));
    CHECK(refused([](Plan& p) { (p = plan_in_place()).positions = {4, 10}; }));
    CHECK(refused([](Plan& p) { (p = plan_in_place()).hidden_offsets = {0, 0, 0}; }));
    EvalBridge bridge(honest_library());
    bridge.arm(plan_for_graph());
    bool twice = false;
    try {
        bridge.arm(plan_for_graph());
    } catch (const std::logic_error&) {
        twice = true;
    }
    CHECK(twice);
}

// One thread runs graphs while another asks for an abort and reads what it may read.
void test_abort_from_another_thread() {
    EvalBridge bridge(honest_library());
    Graph graph;
    std::atomic<bool> started{false};
    std::thread decoding([&] {
        while (!EvalBridge::on_abort(&bridge)) {
            graph.run(bridge);
            started.store(true);
        }
    });
    while (!started.load()) {
        std::this_thread::yield();
    }
    CHECK(bridge.layout_problem().empty());
    bridge.request_abort();
    decoding.join();
    CHECK(bridge.abort_requested());
    bridge.clear_abort();
    CHECK(!EvalBridge::on_abort(&bridge));
}

}  // namespace

int main() {
    test_layout();
    test_idle_answers_false_and_checks_the_first_graph();
    test_patches<ElementType::f32>();
    test_patches<ElementType::f16>();
    test_rows_written_in_place<ElementType::f32, 1>();
    test_rows_written_in_place<ElementType::f16, 1>();
    test_rows_written_in_place<ElementType::f32, 3>();
    test_places_that_do_not_fit_are_told();
    test_scaled_attention_is_told();
    test_captures();
    test_problems_are_told();
    test_plans_that_contradict_themselves();
    test_abort_from_another_thread();
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
