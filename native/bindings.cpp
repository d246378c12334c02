// The Python module indb_tensile._native: binds, and translates faults into the classes of indb_tensile.errors.
#include "bindings.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
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
#include "cpu_device.hpp"
#include "emulated_device.hpp"
#include "fault.hpp"
#include "lent_regions.hpp"
#include "passages.hpp"
#include "random/mersenne_twister.hpp"
#include "script_bindings.hpp"

using namespace tensile;
using namespace tensile::bindings;

namespace {

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
      case Fault::Kind::broken:
        return raise_python("ComputationError", fault.what(), fault.hint().c_str());
      case Fault::Kind::invariant:
        return raise_python("InvariantError", fault.what(), fault.hint().c_str());
    }
  } catch (const std::system_error& error) {
    raise_python("DeviceError", error.what(), "Look at the system's limits on memory and threads.");
  }
}

void bind_ledger(nb::module_& module) {
  nb::class_<Ledger>(module, "Ledger")
      .def_static(
          "create",
          [](std::uint64_t capacity_bytes, std::uint64_t region_bytes, std::uint64_t out_bytes_per_s,
             std::uint64_t in_bytes_per_s, std::optional<std::string> memory_directory,
             std::optional<std::uint64_t> host_bytes) {
            return Ledger::create({capacity_bytes, region_bytes, out_bytes_per_s, in_bytes_per_s,
                                   std::move(memory_directory), host_bytes.value_or(layout::max_bytes)});
          },
          "capacity_bytes"_a, "region_bytes"_a, "out_bytes_per_s"_a, "in_bytes_per_s"_a, "memory_directory"_a.none(),
          "host_bytes"_a.none())
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
      .def("set_pool", &Ledger::set_pool, "size_bytes"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("revoke_slot", &Ledger::revoke_slot, "slot"_a)
      .def("release_slot", &Ledger::release_slot, "slot"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "withdraw", [](Ledger& ledger, std::uint64_t count) { return ledger.regions().withdraw(count); }, "count"_a)
      .def(
          "restore",
          [](Ledger& ledger, const std::vector<std::uint64_t>& regions) { ledger.regions().restore(regions); },
          "regions"_a)
      .def(
          "slot", [](const Ledger& ledger, std::uint32_t slot) { return as_tuple(ledger.usage(slot)); }, "slot"_a)
      .def("slots",
           [](const Ledger& ledger) {
             std::vector<decltype(as_tuple(SlotUsage{}))> rows;
             for (const SlotUsage& usage : ledger.claimed_slots()) rows.push_back(as_tuple(usage));
             return rows;
           })
      .def("regions",
           [](const Ledger& ledger) {
             std::vector<decltype(as_tuple(layout::Owner{}))> rows;
             for (std::uint64_t region = 0; region < ledger.regions().count(); ++region) {
               rows.push_back(as_tuple(ledger.regions().owner(region)));
             }
             return rows;
           })
      .def("pool",
           [](const Ledger& ledger) {
             const PoolUsage u = ledger.usage();
             return std::make_tuple(u.capacity_bytes, u.region_bytes, u.granted_bytes, u.used_bytes,
                                    u.high_water_bytes, u.host_bytes, u.host_limit_bytes, u.absent_bytes,
                                    u.pooled_bytes);
           })
      .def("out_lane", [](const Ledger& ledger) { return as_tuple(ledger.words().out); })
      .def("in_lane", [](const Ledger& ledger) { return as_tuple(ledger.words().in); });
}

void bind_round(nb::module_& module) {
  nb::class_<Passages>(module, "Passages")
      .def(
          "__init__", [](Passages* place, int ledger_fd) { new (place) Passages(Ledger::attach(ledger_fd)); },
          "ledger_fd"_a)
      .def(
          "advance",
          [](Passages& passages, std::uint32_t slot, std::uint64_t round, std::uint64_t boundary) {
            passages.advance(slot, {round, boundary});
          },
          "slot"_a, "number"_a, "boundary"_a)
      .def(
          "wait_for",
          [](const Passages& passages, std::uint32_t slot, std::uint64_t round, std::uint64_t boundary,
             std::uint64_t limit_ns, std::uint32_t spins) {
            return passages.wait_for(slot, {round, boundary}, std::chrono::nanoseconds(limit_ns), spins);
          },
          "slot"_a, "number"_a, "boundary"_a, "limit_ns"_a, "spins"_a = 0, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "progress",
          [](const Passages& passages, std::uint32_t slot) {
            const layout::Progress progress = passages.progress(slot);
            return std::make_tuple(progress.round, progress.boundary);
          },
          "slot"_a)
      .def("end", &Passages::end, "number"_a)
      .def("is_over", &Passages::is_over, "number"_a);
  nb::class_<LentRegions>(module, "LentRegions")
      .def(
          "__init__",
          [](LentRegions* place, int ledger_fd, std::uint32_t slot, std::uint64_t epoch, std::uint64_t begin,
             std::uint32_t places) {
            new (place) LentRegions(Ledger::attach(ledger_fd), {slot, epoch}, places,
                                    file_places(Ledger::attach(ledger_fd), begin, places));
          },
          "ledger_fd"_a, "slot"_a, "epoch"_a, "begin"_a, "places"_a)
      .def(
          "take_for",
          [](LentRegions& regions, const std::vector<std::uint32_t>& places, std::uint64_t limit_ns) {
            return regions.take_for(places, std::chrono::nanoseconds(limit_ns));
          },
          "places"_a, "limit_ns"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("give", &LentRegions::give, "places"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("held_bytes", &LentRegions::held_bytes)
      .def("mapped_count", &LentRegions::mapped_count);
}

void bind_emulated_device(nb::module_& module) {
  nb::class_<EmulatedDevice> bound(module, "EmulatedDevice");
  bound
      .def(
          "__init__",
          [](EmulatedDevice* place, int ledger_fd, std::uint32_t slot, std::uint64_t epoch,
             std::uint64_t host_pool_bytes, std::optional<std::size_t> chunk_bytes, std::uint64_t alignment_bytes,
             bool strict) {
            new (place) EmulatedDevice(Ledger::attach(ledger_fd), {slot, epoch}, host_pool_bytes, chunk_bytes,
                                       {alignment_bytes, strict});
          },
          "ledger_fd"_a, "slot"_a, "epoch"_a, "host_pool_bytes"_a, "chunk_bytes"_a = nb::none(),
          "alignment_bytes"_a = ArenaShape{}.alignment_bytes, "strict"_a = false)
      .def("hook_address", [](EmulatedDevice& device) { return reinterpret_cast<std::uint64_t>(&device.hook()); });
  bind_device(bound);
}

void bind_cpu_device(nb::module_& module) {
  nb::class_<CpuDevice> bound(module, "CpuDevice");
  bound
      .def(
          "__init__",
          [](CpuDevice* place, int ledger_fd, std::uint32_t slot, std::uint64_t epoch, std::uint64_t host_pool_bytes,
             const std::string& swap_directory, std::uint64_t alignment_bytes, bool strict) {
            new (place) CpuDevice(Ledger::attach(ledger_fd), {slot, epoch}, host_pool_bytes, swap_directory,
                                  {alignment_bytes, strict});
          },
          "ledger_fd"_a, "slot"_a, "epoch"_a, "host_pool_bytes"_a, "swap_directory"_a,
          "alignment_bytes"_a = ArenaShape{}.alignment_bytes, "strict"_a = false)
      .def(
          "host_write",
          [](CpuDevice& device, std::uint64_t buffer, std::uint64_t address, std::size_t size_bytes) {
            device.host_write(pointer(buffer), pointer(address), size_bytes);
          },
          "buffer"_a, "address"_a, "size_bytes"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "host_read",
          [](CpuDevice& device, std::uint64_t address, std::uint64_t buffer, std::size_t size_bytes) {
            device.host_read(pointer(address), pointer(buffer), size_bytes);
          },
          "address"_a, "buffer"_a, "size_bytes"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("is_direct", &CpuDevice::is_direct)
      .def("hook_address", [](CpuDevice& device) { return reinterpret_cast<std::uint64_t>(&device.hook()); });
  bind_device(bound);
}

}  // namespace

NB_MODULE(_native, module) {
  nb::register_exception_translator(translate);
  module.attr("LAYOUT_VERSION") = layout::version;
  module.attr("SLOT_COUNT") = layout::slot_count;
  module.def(
      "churn",
      [](int ledger_fd, std::uint32_t slot, std::uint64_t epoch, std::uint64_t seed) {
        churn(Ledger::attach(ledger_fd), {slot, epoch}, seed);
      },
      "ledger_fd"_a, "slot"_a, "epoch"_a, "seed"_a, nb::call_guard<nb::gil_scoped_release>());
  module.attr("TWISTER_STATE_BYTES") = sizeof(TwisterState);
  module.def(
      "skip_words",
      [](std::uint64_t state, std::uint64_t count) { skip_words(*reinterpret_cast<TwisterState*>(state), count); },
      "state"_a, "count"_a, nb::call_guard<nb::gil_scoped_release>());
  bind_ledger(module);
  bind_round(module);
  bind_emulated_device(module);
  bind_cpu_device(module);
  bind_cuda(module);
  bind_script(module);
}
