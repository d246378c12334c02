#include "script_bindings.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "private_arena.hpp"
#include "script.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensile {
namespace {

using PlacedRow = std::tuple<std::uint64_t, std::uint64_t>;  // size, offset
using RecordRow = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>;

Sheet sheet_of(const std::vector<std::vector<PlacedRow>>& positions, const std::vector<PlacedRow>& rooms) {
  Sheet sheet;
  for (const auto& rows : positions) {
    for (const auto& [size_bytes, offset_bytes] : rows) sheet.placed.push_back({size_bytes, offset_bytes});
    sheet.first.push_back(static_cast<std::uint32_t>(sheet.placed.size()));
  }
  for (const auto& [size_bytes, offset_bytes] : rooms) sheet.rooms.push_back({size_bytes, offset_bytes});
  return sheet;
}

// Scripts and private arenas are never deleted: tensors may release their memory as late as the end of the process.
Script* create(std::uint64_t hook, std::uint64_t shim, std::uint64_t pieces) {
  return new Script(*reinterpret_cast<const tensile_arena_hook*>(hook), reinterpret_cast<Script::Shim>(shim),
                    std::unique_ptr<Pieces>(reinterpret_cast<Pieces*>(pieces)));
}

std::uint64_t private_arena(std::uint64_t limit_bytes) {
  return reinterpret_cast<std::uint64_t>((new PrivateArena(limit_bytes))->hook());
}

}  // namespace

void bind_script(nb::module_& module) {
  module.def("private_arena", &private_arena, "limit_bytes"_a);
  module.def(
      "trim_private_arena",
      [](std::uint64_t hook) { PrivateArena::trim(*reinterpret_cast<const tensile_arena_hook*>(hook)); },
      "hook_address"_a);
  nb::class_<Sheet>(module, "Sheet")
      .def(
          "__init__",
          [](Sheet* place, const std::vector<std::vector<PlacedRow>>& positions, std::vector<std::string> names,
             const std::vector<PlacedRow>& rooms) {
            new (place) Sheet(sheet_of(positions, rooms));
            place->names = std::move(names);
          },
          "positions"_a, "names"_a = std::vector<std::string>(), "rooms"_a = std::vector<PlacedRow>());
  nb::class_<Script>(module, "Script")
      .def_static("create", &create, "hook_address"_a, "shim_address"_a, "pieces_address"_a = 0,
                  nb::rv_policy::reference)
      .def("position_address", [](Script& script) { return reinterpret_cast<std::uint64_t>(script.position()); })
      .def("reserve", &Script::reserve, "size_bytes"_a, "gathers"_a = false)
      .def("kept", &Script::kept, "size_bytes"_a, "gathers"_a = false)
      .def("block", &Script::block)
      .def("extend", &Script::extend, "size_bytes"_a)
      .def("discard", &Script::discard, "address"_a, "size_bytes"_a)
      .def("be_strict", &Script::be_strict, "who"_a)
      .def("serve", &Script::serve, "sheet"_a.none())
      .def("rest", &Script::rest)
      .def("lend", &Script::lend, "address"_a, "size_bytes"_a)
      .def("record", &Script::record)
      .def("recorded",
           [](Script& script) {
             std::vector<RecordRow> rows;
             for (const Record& r : script.recorded())
               rows.emplace_back(r.position, r.size_bytes, r.address, r.made_at, r.released_at);
             return rows;
           })
      .def("usage",
           [](const Script& script) {
             const ScriptUsage u = script.usage();
             return std::make_tuple(u.planned, u.unplanned, u.mismatched, u.occupied, u.elsewhere, u.used_bytes,
                                    u.high_water_bytes);
           })
      .def("take_excess",
           [](Script& script) {
             std::vector<PlacedRow> rows;  // position, size
             for (const Excess& excess : script.take_excess()) rows.emplace_back(excess.position, excess.size_bytes);
             return rows;
           })
      .def("reset_high_water", &Script::reset_high_water);
}

}  // namespace tensile
