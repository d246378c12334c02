// The Python module indb_tensile._planner: binds the search for the choices of one step graph.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "search.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace tensile::planner;

namespace {

template <class T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MoveRow = std::tuple<Index, Index, Index, Index, Index, bool>;
using ChoiceRow = std::tuple<Index, Index, Index>;  // gap, lo, hi
using Released = nb::call_guard<nb::gil_scoped_release>;

constexpr Index dropped = -2;  // value of lo and hi in the row of a dropped gap

template <class T>
std::vector<T> copied(const Array<T>& array) {
  return {array.data(), array.data() + array.size()};
}

std::vector<Access> accesses(const Array<Index>& tensor, const Array<std::uint8_t>& writes,
                             const std::optional<Array<std::uint8_t>>& stays) {
  if (tensor.size() != writes.size() || (stays && tensor.size() != stays->size()))
    throw std::invalid_argument("step arrays: lengths do not fit together");
  std::vector<Access> accesses;
  accesses.reserve(tensor.size());
  for (std::size_t k = 0; k < tensor.size(); ++k)
    accesses.push_back({tensor.data()[k], writes.data()[k] != 0, stays && stays->data()[k] != 0});
  return accesses;
}

std::vector<MoveRow> moves(const Search& search) {
  std::vector<MoveRow> rows;
  for (const Move& move : search.layout().moves)
    rows.emplace_back(move.tensor, move.after, move.free, move.back, move.need, move.copies);
  return rows;
}

std::vector<ChoiceRow> choices(const Search& search) {
  std::vector<ChoiceRow> rows;
  const Choices& all = search.choices();
  for (std::size_t gap = 0; gap < all.choice.size(); ++gap) {
    if (all.choice[gap] == Choice::swap)
      rows.emplace_back(static_cast<Index>(gap), all.cover[gap].lo, all.cover[gap].hi);
    if (all.choice[gap] == Choice::drop) rows.emplace_back(static_cast<Index>(gap), dropped, dropped);
  }
  return rows;
}

std::vector<std::tuple<Index, Index, Index>> gaps(const Search& search) {
  std::vector<std::tuple<Index, Index, Index>> rows;
  for (const Gap& gap : search.step().gaps) rows.emplace_back(gap.tensor, gap.after, gap.need);
  return rows;
}

void choose(Search& search, const std::vector<ChoiceRow>& rows, std::optional<Bytes> room_bytes) {
  Choices choices = search.nothing();
  choices.room_bytes = room_bytes;
  for (const auto& [gap, lo, hi] : rows) {
    if (gap < 0 || static_cast<std::size_t>(gap) >= choices.choice.size())
      throw std::invalid_argument("search: there is no such gap");
    const bool drops = lo == dropped;
    choices.choice[static_cast<std::size_t>(gap)] = drops ? Choice::drop : Choice::swap;
    if (!drops) choices.cover[static_cast<std::size_t>(gap)] = {lo, hi};
  }
  search.choose(std::move(choices));
}

std::optional<std::pair<Bytes, Ns>> adopt(Search& search, const Array<Index>& order,
                                          const std::vector<MoveRow>& rows) {
  std::vector<Move> moves;
  for (const auto& [tensor, after, free, back, need, copies] : rows)
    moves.push_back({none, tensor, after, need, free, back, 0, none, copies});
  const auto standing = search.adopt(copied(order), std::move(moves));
  if (!standing) return std::nullopt;
  return std::pair(standing->peak_bytes, standing->iteration_ns);
}

}  // namespace

NB_MODULE(_planner, module) {
  nb::set_leak_warnings(false);  // an interpreter does not free values in a module's globals when it ends
  nb::class_<GreedyOptions>(module, "GreedyOptions")
      .def(
          "__init__",
          [](GreedyOptions* place, bool drops, double lane_price, int tried, int together, bool careful,
             double surprise) { new (place) GreedyOptions{drops, lane_price, tried, together, careful, surprise}; },
          nb::kw_only(), "drops"_a = true, "lane_price"_a = 0.0, "tried"_a = 6, "together"_a = 1, "careful"_a = false,
          "surprise"_a = 0.1);
  nb::class_<Search>(module, "Search")
      .def(
          "__init__",
          [](Search* place, const Array<Bytes>& size_bytes, const Array<std::uint8_t>& persistent,
             const Array<Ns>& out_ns, const Array<Ns>& in_ns, const Array<Ns>& latency_ns,
             const Array<Bytes>& workspace_bytes, const Array<std::uint8_t>& upload,
             const Array<std::uint8_t>& repeatable, const Array<Index>& offset, const Array<Index>& access,
             const Array<std::uint8_t>& writes, bool hold, const std::optional<Array<std::uint8_t>>& stays) {
            new (place) Search(StepArrays{copied(size_bytes), copied(persistent), copied(out_ns), copied(in_ns),
                                          copied(latency_ns), copied(workspace_bytes), copied(upload),
                                          copied(repeatable), copied(offset), accesses(access, writes, stays), hold});
          },
          nb::kw_only(), "size_bytes"_a, "persistent"_a, "out_ns"_a, "in_ns"_a, "latency_ns"_a, "workspace_bytes"_a,
          "upload"_a, "repeatable"_a, "offset"_a, "access"_a, "writes"_a, "hold"_a = false, "stays"_a = nb::none())
      .def("clear", &Search::clear, Released())
      .def("exhaust", &Search::exhaust, Released())
      .def("lower", &Search::lower, "limit_bytes"_a, "options"_a, "most"_a, Released())
      .def(
          "sweep",
          [](Search& search, Bytes limit_bytes, bool drops, double lane_price, double again_price, int rounds) {
            return search.sweep(limit_bytes, Weights{drops, lane_price, again_price}, rounds);
          },
          "limit_bytes"_a, nb::kw_only(), "drops"_a, "lane_price"_a, "again_price"_a, "rounds"_a, Released())
      .def("sweep_again", &Search::sweep_again, nb::kw_only(), "drops"_a, "most"_a, "seed"_a, Released())
      .def("swap_idle", &Search::swap_idle, "most"_a, Released())
      .def("press", &Search::press, "limit_bytes"_a, "most"_a, Released())
      .def("prune", &Search::prune, "limit_bytes"_a, "most"_a, Released())
      .def("fill", &Search::fill, "room_bytes"_a, Released())
      .def("exchange", &Search::exchange, "drops"_a, "most"_a, Released())
      .def("improve", &Search::improve, "limit_bytes"_a, "options"_a, "most"_a, "seed"_a, Released())
      .def(
          "advance",
          [](Search& search, const std::vector<Index>& distances, const Array<Ns>& out_ns, const Array<Ns>& in_ns) {
            return search.advance(distances, copied(out_ns), copied(in_ns));
          },
          "distances"_a, nb::kw_only(), "out_ns"_a, "in_ns"_a)
      .def("adopt", &adopt, nb::kw_only(), "order"_a, "moves"_a)
      .def("uncover", &Search::uncover, Released())
      .def_prop_ro("holds", [](const Search& search) { return search.step().holds(); })
      .def_prop_ro("gaps", &gaps)
      .def_prop_ro("choices", &choices)
      .def("choose", &choose, "choices"_a, "room_bytes"_a = nb::none())
      .def_prop_ro("room_bytes", [](const Search& search) { return search.choices().room_bytes; })
      .def_prop_ro("lane_ns", [](const Search& search) { return search.lane_ns(); })
      .def_prop_ro("layouts", &Search::layouts)
      .def_prop_ro("order", [](const Search& search) { return search.layout().order().op_at; })
      .def_prop_ro("moves", &moves)
      .def_prop_ro("load_bytes", [](const Search& search) { return search.layout().load_bytes; })
      .def_prop_ro("peak_bytes", [](const Search& search) { return search.layout().peak_bytes(); })
      .def_prop_ro("iteration_ns", [](const Search& search) { return search.layout().iteration_ns; })
      .def_prop_ro("stall_ns", [](const Search& search) { return search.layout().stall_ns; });
}
