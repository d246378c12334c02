// The Python module indb_tensile._native: binds, and translates faults into the classes of indb_tensile.errors.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "churn.hpp"
#include "emulated_device.hpp"
#include "fault.hpp"
#include "script_bindings.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace tensile;

namespace {

constexpr std::chrono::milliseconds signal_interval{100};  // how soon Ctrl-C ends a wait

std::byte* pointer(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

// Block without the interpreter lock, letting signal handlers run now and then; returns the nanoseconds it took.
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

std::uint64_t wait(Device& device, Ticket ticket) {
  if (device.done(ticket)) return 0;
  return blocked_ns([&] { return device.wait_for(ticket, signal_interval); });
}

void raise_python(const char* class_name, const char* message, const char* hint) {
  nb::object error = nb::module_::import_("indb_tensile.errors").attr(class_name)(message, "hint"_a = hint);
  PyErr_SetObject(error.type().ptr(), error.ptr());
}

void translate(const std::exception_ptr& thrown, void* /*payload*/) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Fault& fault) {
    switch (fault.kind()) {
      case Fault::Kind::device:
        return raise_python("DeviceError", fault.what(), fault.hint().c_str());
      case Fault::Kind::memory:
        return raise_python("DeviceMemoryError", fault.what(), fault.hint().c_str());
      case Fault::Kind::lost:
        return raise_python("DeviceLostError", fault.what(), fault.hint().c_str());
      case Fault::Kind::invariant:
        return raise_python("InvariantError", fault.what(), fault.hint().c_str());
    }
  } catch (const std::system_error& error) {
    raise_python("DeviceError", error.what(), "Look at the system's limits on memory and threads.");
  }
}

using SlotTuple = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t,
                             std::uint64_t>;

SlotTuple as_tuple(const SlotUsage& u) {
  return {u.slot, u.epoch, u.pid, u.granted_bytes, u.held_bytes, u.used_bytes, u.high_water_bytes};
}

using RegionTuple = std::tuple<std::uint64_t, bool, std::uint64_t, std::uint64_t>;

RegionTuple as_tuple(const layout::Owner& owner) {
  return {static_cast<std::uint64_t>(owner.state), owner.backed, owner.slot, owner.epoch};
}

auto as_tuple(const layout::Lane& lane) {
  return std::make_tuple(lane.bytes_per_s, lane.free_ns.load(), lane.reserved_ns.load(), lane.reserved_bytes.load());
}

void bind_ledger(nb::module_& module) {
  nb::class_<Ledger>(module, "Ledger")
      .def_static(
          "create",
          [](std::uint64_t capacity_bytes, std::uint64_t region_bytes, std::uint64_t out_bytes_per_s,
             std::uint64_t in_bytes_per_s, std::optional<std::string> memory_directory) {
            return Ledger::create(
                {capacity_bytes, region_bytes, out_bytes_per_s, in_bytes_per_s, std::move(memory_directory)});
          },
          "capacity_bytes"_a, "region_bytes"_a, "out_bytes_per_s"_a, "in_bytes_per_s"_a, "memory_directory"_a.none())
      .def_static("attach", &Ledger::attach, "fd"_a)
      .def("fd", &Ledger::fd)
      .def(
          "claim_slot",
          [](Ledger& ledger, std::uint64_t pid) {
            const Claim claim = ledger.claim_slot(pid);
            return std::make_tuple(claim.slot, claim.epoch);
          },
          "pid"_a)
      .def("set_pid", &Ledger::set_pid, "slot"_a, "pid"_a)
      .def("grant", &Ledger::grant, "slot"_a, "size_bytes"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("revoke_slot", &Ledger::revoke_slot, "slot"_a)
      .def("release_slot", &Ledger::release_slot, "slot"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "slot", [](const Ledger& ledger, std::uint32_t slot) { return as_tuple(ledger.usage(slot)); }, "slot"_a)
      .def("slots",
           [](const Ledger& ledger) {
             std::vector<SlotTuple> found;
             for (const SlotUsage& usage : ledger.claimed_slots()) found.push_back(as_tuple(usage));
             return found;
           })
      .def("regions",
           [](const Ledger& ledger) {
             std::vector<RegionTuple> found;
             for (std::uint64_t region = 0; region < ledger.regions().count(); ++region) {
               found.push_back(as_tuple(ledger.regions().owner(region)));
             }
             return found;
           })
      .def("pool",
           [](const Ledger& ledger) {
             const PoolUsage u = ledger.usage();
             return std::make_tuple(u.capacity_bytes, u.region_bytes, u.granted_bytes, u.used_bytes,
                                    u.high_water_bytes);
           })
      .def("out_lane", [](const Ledger& ledger) { return as_tuple(ledger.words().out); })
      .def("in_lane", [](const Ledger& ledger) { return as_tuple(ledger.words().in); });
}

void bind_emulated_device(nb::module_& module) {
  nb::class_<EmulatedDevice>(module, "EmulatedDevice")
      .def(
          "__init__",
          [](EmulatedDevice* place, int ledger_fd, std::uint32_t slot, std::uint64_t epoch,
             std::uint64_t host_pool_bytes, std::size_t chunk_bytes, std::uint64_t alignment_bytes, bool strict) {
            new (place) EmulatedDevice(Ledger::attach(ledger_fd), {slot, epoch}, host_pool_bytes, chunk_bytes,
                                       {alignment_bytes, strict});
          },
          "ledger_fd"_a, "slot"_a, "epoch"_a, "host_pool_bytes"_a,
          "chunk_bytes"_a = EmulatedDevice::default_chunk_bytes, "alignment_bytes"_a = ArenaShape{}.alignment_bytes,
          "strict"_a = false)
      .def("move", &EmulatedDevice::move, "freed_bytes"_a, "taken_bytes"_a)
      .def("allocate", &EmulatedDevice::allocate, "size_bytes"_a)
      .def("allocate_at", &EmulatedDevice::allocate_at, "offset"_a, "size_bytes"_a)
      .def("free", &EmulatedDevice::free, "address"_a)
      .def("hook_address", [](EmulatedDevice& device) { return reinterpret_cast<std::uint64_t>(&device.hook()); })
      .def("_arena",
           [](const EmulatedDevice& device) {
             const ArenaUsage u = device.arena().usage();
             return std::make_tuple(u.owned_bytes, u.reserved_bytes, u.allocated_bytes, u.requested_bytes,
                                    u.high_water_bytes, u.reserved_high_water_bytes, u.largest_free_bytes,
                                    u.fallback_count, u.unaccounted_bytes);
           })
      .def("_arena_range",
           [](const EmulatedDevice& device) {
             const tensile_arena_hook& hook = device.arena().hook();
             return std::make_tuple(std::uint64_t{hook.begin}, std::uint64_t{hook.end});
           })
      .def(
          "copy_out",
          [](EmulatedDevice& device, std::uint64_t host, DeviceAddress address, std::size_t size_bytes) {
            return device.copy_out(pointer(host), address, size_bytes);
          },
          "host"_a, "address"_a, "size_bytes"_a)
      .def(
          "copy_in",
          [](EmulatedDevice& device, DeviceAddress address, std::uint64_t host, std::size_t size_bytes) {
            return device.copy_in(address, pointer(host), size_bytes);
          },
          "address"_a, "host"_a, "size_bytes"_a)
      .def(
          "wait", [](EmulatedDevice& device, Ticket ticket) { return wait(device, ticket); }, "ticket"_a)
      .def("done", &EmulatedDevice::done, "ticket"_a)
      .def("drain",
           [](EmulatedDevice& device) { return blocked_ns([&] { return device.drain_for(signal_interval); }); })
      .def(
          "host_allocate",
          [](EmulatedDevice& device, std::uint64_t size_bytes) {
            return reinterpret_cast<std::uint64_t>(device.host_allocate(size_bytes));
          },
          "size_bytes"_a)
      .def(
          "host_free", [](EmulatedDevice& device, std::uint64_t buffer) { device.host_free(pointer(buffer)); },
          "buffer"_a)
      .def("_slot", [](const EmulatedDevice& device) { return as_tuple(device.usage()); })
      .def("_host",
           [](const EmulatedDevice& device) {
             const HostUsage u = device.host_usage();
             return std::make_tuple(u.limit_bytes, u.used_bytes, u.high_water_bytes, u.resident_bytes);
           })
      .def("reset_high_water", &EmulatedDevice::reset_high_water)
      .def("close", &EmulatedDevice::close, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace

NB_MODULE(_native, module) {
  nb::register_exception_translator(translate);
  module.attr("LAYOUT_VERSION") = layout::version;
  module.attr("SLOT_COUNT") = layout::slot_count;
  module.attr("CHUNK_BYTES") = EmulatedDevice::default_chunk_bytes;
  module.def(
      "churn",
      [](int ledger_fd, std::uint32_t slot, std::uint64_t epoch, std::uint64_t seed) {
        churn(Ledger::attach(ledger_fd), {slot, epoch}, seed);
      },
      "ledger_fd"_a, "slot"_a, "epoch"_a, "seed"_a, nb::call_guard<nb::gil_scoped_release>());
  bind_ledger(module);
  bind_emulated_device(module);
  bind_script(module);
}
