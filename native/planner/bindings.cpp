// The Python module indb_tensile._planner: binds the search over one step graph's choices.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <vector>

#include "search.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace tensile::planner;

namespace {

using MoveRow = std::tuple<Index, Index, Index, Index, Index, bool>;

StepArrays arrays(std::vector<Bytes> size_bytes, std::vector<std::uint8_t> persistent, std::vector<Ns> out_ns,
                  std::vector<Ns> in_ns, std::vector<Ns> latency_ns, std::vector<Bytes> workspace_bytes,
                  std::vector<std::uint8_t> upload, std::vector<std::uint8_t> repeatable, std::vector<Index> offset,
                  const std::vector<std::pair<Index, bool>>& access) {
  StepArrays found{std::move(size_bytes), std::move(persistent), std::move(out_ns),     std::move(in_ns),
                   std::move(latency_ns), std::move(workspace_bytes), std::move(upload), std::move(repeatable),
                   std::move(offset),     {}};
  found.access.reserve(access.size());
  for (const auto& [tensor, writes] : access) found.access.push_back({tensor, writes});
  return found;
}

std::vector<MoveRow> moves(const Search& search) {
  std::vector<MoveRow> found;
  for (const Move& one : search.layout().moves)
    found.emplace_back(one.tensor, one.after, one.free, one.back, one.need, one.copies);
  return found;
}

}  // namespace

NB_MODULE(_planner, module) {
  nb::class_<Manner>(module, "Manner")
      .def(
          "__init__",
          [](Manner* place, bool drops, double lane_price, double swap_price, int tried, int together,
             bool careful, double surprise) {
            new (place) Manner{drops, lane_price, swap_price, tried, together, careful, surprise};
          },
          nb::kw_only(), "drops"_a = true, "lane_price"_a = 0.0, "swap_price"_a = 1.0, "tried"_a = 6, "together"_a = 1, "careful"_a = false, "surprise"_a = 0.1);
  nb::class_<Search>(module, "Search")
      .def(
          "__init__",
          [](Search* place, std::vector<Bytes> size_bytes, std::vector<std::uint8_t> persistent, std::vector<Ns> out_ns,
             std::vector<Ns> in_ns, std::vector<Ns> latency_ns, std::vector<Bytes> workspace_bytes,
             std::vector<std::uint8_t> upload, std::vector<std::uint8_t> repeatable, std::vector<Index> offset,
             const std::vector<std::pair<Index, bool>>& access) {
            new (place) Search(arrays(std::move(size_bytes), std::move(persistent), std::move(out_ns), std::move(in_ns),
                                      std::move(latency_ns), std::move(workspace_bytes), std::move(upload),
                                      std::move(repeatable), std::move(offset), access));
          },
          nb::kw_only(), "size_bytes"_a, "persistent"_a, "out_ns"_a, "in_ns"_a, "latency_ns"_a, "workspace_bytes"_a,
          "upload"_a, "repeatable"_a, "offset"_a, "access"_a)
      .def("clear", &Search::clear, nb::call_guard<nb::gil_scoped_release>())
      .def("exhaust", &Search::exhaust)
      .def("lower", &Search::lower, "limit_bytes"_a, "manner"_a, "most"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("prune", &Search::prune, "limit_bytes"_a, "most"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("improve", &Search::improve, "limit_bytes"_a, "manner"_a, "most"_a, "seed"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("retime", &Search::retime, nb::kw_only(), "latency_ns"_a, "out_ns"_a, "in_ns"_a)
      .def_prop_ro("choices",
                   [](const Search& search) {
                     std::vector<std::tuple<int, Index, Index>> found;
                     const Choices& all = search.choices();
                     for (std::size_t k = 0; k < all.choice.size(); ++k)
                       found.emplace_back(static_cast<int>(all.choice[k]), all.cover[k].lo, all.cover[k].hi);
                     return found;
                   })
      .def("choose",
           [](Search& search, const std::vector<std::tuple<int, Index, Index>>& rows) {
             Choices found;
             for (const auto& [choice, lo, hi] : rows) {
               found.choice.push_back(static_cast<Choice>(choice));
               found.cover.push_back({lo, hi});
             }
             search.choose(std::move(found));
           })
      .def_prop_ro("lane_ns", [](const Search& search) { return search.lane_ns(); })
      .def_prop_ro("layouts", &Search::layouts)
      .def_prop_ro("order", [](const Search& search) { return search.layout().order().op_at; })
      .def_prop_ro("moves", &moves)
      .def_prop_ro("load_bytes", [](const Search& search) { return search.layout().load_bytes; })
      .def_prop_ro("peak_bytes", [](const Search& search) { return search.layout().peak_bytes(); })
      .def_prop_ro("iteration_ns", [](const Search& search) { return search.layout().iteration_ns; })
      .def_prop_ro("stall_ns", [](const Search& search) { return search.layout().stall_ns; });
}
