// Helpers that the binding files of _native share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/tuple.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <tuple>

#include "arena.hpp"
#include "device.hpp"
#include "lane_clock.hpp"

namespace tensile::bindings {

namespace nb = nanobind;
using namespace nb::literals;

inline constexpr std::chrono::milliseconds signal_interval{100};  // the longest delay before Ctrl-C ends a wait

inline std::byte* pointer(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

// Block without the interpreter lock until `waiter` returns true, and run Python's signal handlers between its calls.
// Returns the nanoseconds spent.
template <typename Waiter>
std::uint64_t blocked_ns(Waiter waiter) {
  const std::uint64_t start_ns = now_ns();
  for (;;) {
    {
      const nb::gil_scoped_release released;
      if (waiter()) break;
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
  return now_ns() - start_ns;
}

inline auto as_tuple(const SlotUsage& u) {
  return std::make_tuple(u.slot, u.epoch, u.pid, u.granted_bytes, u.held_bytes, u.used_bytes, u.high_water_bytes,
                         u.host_bytes, u.lent_bytes);
}

inline auto as_tuple(const layout::Owner& owner) {
  return std::make_tuple(static_cast<std::uint64_t>(owner.state), owner.backed, owner.slot, owner.epoch);
}

inline auto as_tuple(const layout::Lane& lane) {
  return std::make_tuple(lane.bytes_per_s, lane.free_ns.load(), lane.reserved_ns.load(), lane.reserved_bytes.load());
}

// Bind the methods that every back end's device has.
template <typename Back>
void bind_device(nb::class_<Back>& bound) {
  bound.def("move", &Back::move, "freed_bytes"_a, "taken_bytes"_a)
      .def(
          "allocate", [](Back& device, std::uint64_t size_bytes) { return device.allocate(size_bytes); },
          "size_bytes"_a)
      .def(
          "allocate_at",
          [](Back& device, std::uint64_t offset, std::uint64_t size_bytes) {
            return device.allocate_at(offset, size_bytes);
          },
          "offset"_a, "size_bytes"_a)
      .def(
          "free", [](Back& device, DeviceAddress address) { device.free(address); }, "address"_a)
      .def("_arena",
           [](const Back& device) {
             const ArenaUsage u = device.arena().usage();
             return std::make_tuple(u.owned_bytes, u.reserved_bytes, u.allocated_bytes, u.requested_bytes,
                                    u.high_water_bytes, u.reserved_high_water_bytes, u.largest_free_bytes,
                                    u.fallback_count, u.unaccounted_bytes);
           })
      .def("_arena_range",
           [](const Back& device) {
             const tensile_arena_hook& hook = device.arena().hook();
             return std::make_tuple(std::uint64_t{hook.begin}, std::uint64_t{hook.end});
           })
      .def(
          "copy_out",
          [](Back& device, std::uint64_t host, DeviceAddress address, std::size_t size_bytes) {
            return device.copy_out(pointer(host), address, size_bytes);
          },
          "host"_a, "address"_a, "size_bytes"_a)
      .def(
          "copy_in",
          [](Back& device, DeviceAddress address, std::uint64_t host, std::size_t size_bytes) {
            return device.copy_in(address, pointer(host), size_bytes);
          },
          "address"_a, "host"_a, "size_bytes"_a)
      .def(
          "wait",
          [](Back& device, Ticket ticket) -> std::uint64_t {
            if (device.done(ticket)) return 0;
            return blocked_ns([&] { return device.wait_for(ticket, signal_interval); });
          },
          "ticket"_a)
      .def("done", &Back::done, "ticket"_a)
      .def("drain", [](Back& device) { return blocked_ns([&] { return device.drain_for(signal_interval); }); })
      .def(
          "host_allocate",
          [](Back& device, std::uint64_t size_bytes) {
            return reinterpret_cast<std::uint64_t>(device.host_allocate(size_bytes));
          },
          "size_bytes"_a)
      .def(
          "host_free", [](Back& device, std::uint64_t buffer) { device.host_free(pointer(buffer)); }, "buffer"_a)
      .def("host_pack",
           [](Back& device) {
             std::map<std::uint64_t, std::uint64_t> moved;
             for (const HostMove& move : device.host_pack()) {
               moved[reinterpret_cast<std::uint64_t>(move.from)] = reinterpret_cast<std::uint64_t>(move.to);
             }
             return moved;
           })
      .def("host_fit", &Back::host_fit, "free_bytes"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("_slot", [](const Back& device) { return as_tuple(device.usage()); })
      .def("_host",
           [](const Back& device) {
             const HostUsage u = device.host_usage();
             return std::make_tuple(u.limit_bytes, u.used_bytes, u.high_water_bytes, u.resident_bytes);
           })
      .def("reset_high_water", &Back::reset_high_water)
      .def("close", &Back::close, nb::call_guard<nb::gil_scoped_release>());
}

// Bind the GPU's part of the module.
void bind_cuda(nb::module_& module);

}  // namespace tensile::bindings
