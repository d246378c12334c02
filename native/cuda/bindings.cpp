// The GPU's part of the Python module; it contains bindings only.
#include "bindings.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <new>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cuda/cuda_device.hpp"
#include "cuda/probe.hpp"
#include "cuda/torch_allocator.hpp"

namespace tensile::bindings {
namespace {

using cuda::Absent;
using cuda::CudaDevice;
using cuda::RegionBroker;
using cuda::RegionMap;
using cuda::RegionShape;

const char* spelled(Absent::Why why) {
  switch (why) {
    case Absent::Why::no_driver:
      return "no driver";
    case Absent::Why::broken_driver:
      return "broken driver";
    case Absent::Why::old_driver:
      return "old driver";
    case Absent::Why::no_device:
      return "no device";
    case Absent::Why::refused:
      return "refused";
  }
  return "";
}

// Return the facts keyed by name: a tuple of this many values would be misread easily.
nb::dict as_dict(const cuda::DeviceFacts& facts) {
  nb::dict made;
  made["ordinal"] = facts.ordinal;
  made["name"] = facts.name;
  made["uuid"] = facts.uuid;
  made["memory_bytes"] = facts.memory_bytes;
  made["capability"] = std::make_tuple(facts.capability_major, facts.capability_minor);
  made["multiprocessors"] = facts.multiprocessors;
  made["clock_khz"] = facts.clock_khz;
  made["memory_clock_khz"] = facts.memory_clock_khz;
  made["memory_bus_bits"] = facts.memory_bus_bits;
  made["copy_engines"] = facts.copy_engines;
  made["virtual_memory"] = facts.virtual_memory;
  made["shareable"] = facts.shareable;
  made["granularity_bytes"] = facts.granularity_bytes;
  return made;
}

nb::object probe() {
  const auto& loaded = cuda::process_driver();
  if (const auto* absent = std::get_if<Absent>(&loaded)) {
    return nb::cast(std::make_tuple(spelled(absent->why), absent->reason, absent->hint));
  }
  const cuda::Driver& driver = cuda::required_driver();
  nb::list devices;
  for (const cuda::DeviceFacts& facts : cuda::probe(driver)) devices.append(as_dict(facts));
  return nb::cast(std::make_tuple(driver.version(), devices));
}

void bind_broker(nb::module_& module) {
  nb::class_<RegionBroker>(module, "CudaBroker")
      .def(
          "__init__",
          [](RegionBroker* place, int device, std::uint64_t region_bytes, std::uint64_t count) {
            new (place) RegionBroker(cuda::required_driver(), {device, region_bytes, count});
          },
          "device"_a, "region_bytes"_a, "count"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("send", &RegionBroker::send, "socket"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("greet", &RegionBroker::greet, "socket"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("add", &RegionBroker::add, "socket"_a, "regions"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_static("remove", &RegionBroker::remove, "socket"_a, "regions"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("create", &RegionBroker::create, "regions"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("release", &RegionBroker::release, "regions"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("present", &RegionBroker::present);
}

// The regions that a trainer has received, until a device takes them. Keeps the context, so that the device does not
// have to create it again.
struct Regions {
  Regions(int device, int socket) : context(cuda::required_driver(), device) {
    const cuda::Current current(context);
    map.emplace(RegionMap::receive(cuda::required_driver(), device, socket));
  }

  // Write to each region, and wait until the device has done so.
  void touch() const {
    const cuda::Current current(context);
    map.value().touch();
  }

  const cuda::PrimaryContext context;
  std::optional<RegionMap> map;
};

void bind_regions(nb::module_& module) {
  nb::class_<Regions>(module, "CudaRegions")
      .def(
          "__init__", [](Regions* place, int device, int socket) { new (place) Regions(device, socket); }, "device"_a,
          "socket"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("touch", &Regions::touch, nb::call_guard<nb::gil_scoped_release>());
}

RegionMap taken(Regions& regions) {
  if (!regions.map) throw Fault(Fault::Kind::invariant, "another device has these regions");
  RegionMap map = std::move(*regions.map);
  regions.map.reset();
  return map;
}

void make_device(CudaDevice* place, int ledger_fd, std::uint32_t slot, std::uint64_t epoch,
                 std::uint64_t host_pool_bytes, int device, Regions* regions, std::size_t chunk_bytes) {
  const cuda::Driver& driver = cuda::required_driver();
  Ledger ledger = Ledger::attach(ledger_fd);
  const PoolUsage pool = ledger.usage();
  const RegionShape own{device, pool.region_bytes, pool.capacity_bytes / pool.region_bytes};
  RegionMap map = regions == nullptr ? RegionMap::reserve(driver, own) : taken(*regions);
  new (place) CudaDevice(driver, std::move(ledger), {slot, epoch}, std::move(map), host_pool_bytes, chunk_bytes);
}

void bind_cuda_device(nb::module_& module) {
  nb::class_<CudaDevice> bound(module, "CudaDevice");
  bound.def("__init__", &make_device, "ledger_fd"_a, "slot"_a, "epoch"_a, "host_pool_bytes"_a, "device"_a,
            "regions"_a.none(), "chunk_bytes"_a = CudaDevice::default_chunk_bytes,
            nb::call_guard<nb::gil_scoped_release>());
  bind_device(bound);
  bound.def("compute_on", &CudaDevice::compute_on, "stream"_a)
      .def("_compute_after", &CudaDevice::compute_after, "ticket"_a)
      .def("host_prepare", &CudaDevice::host_prepare, "size_bytes"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("hold_regions", &CudaDevice::hold_regions, nb::call_guard<nb::gil_scoped_release>())
      .def("let_regions_change", &CudaDevice::let_regions_change)
      .def("begin_recording", &CudaDevice::begin_recording)
      .def("end_recording",
           [](CudaDevice& device) {
             const CudaDevice::Copied copied = device.end_recording();
             return std::make_tuple(copied.out_bytes, copied.in_bytes);
           })
      .def("give_up_recording", &CudaDevice::give_up_recording)
      .def(
          "count_copied",
          [](CudaDevice& device, std::uint64_t out_bytes, std::uint64_t in_bytes) {
            device.count({out_bytes, in_bytes});
          },
          "out_bytes"_a, "in_bytes"_a)
      .def("check_context", &CudaDevice::check_context, nb::call_guard<nb::gil_scoped_release>())
      .def("trim", &CudaDevice::trim, nb::call_guard<nb::gil_scoped_release>())
      .def("hook_address", [](CudaDevice& device) { return reinterpret_cast<std::uint64_t>(&device.arena().hook()); })
      .def("pieces_address",
           [](CudaDevice& device) { return reinterpret_cast<std::uint64_t>(device.pieces().release()); })
      .def(
          "lent_regions",
          [](CudaDevice& device, std::uint64_t begin, std::uint32_t places) {
            return device.lent_regions(begin, places).release();
          },
          "begin"_a, "places"_a, nb::rv_policy::take_ownership, nb::keep_alive<0, 1>())
      .def(
          "finish", [](CudaDevice& device) { device.finish(); }, nb::call_guard<nb::gil_scoped_release>())
      .def("allow_outside", &CudaDevice::allow_outside, "size_bytes"_a)
      .def("outside_bytes", &CudaDevice::outside_bytes)
      .def("allocate_outside", &CudaDevice::allocate_outside, "size_bytes"_a)
      .def("free_outside", &CudaDevice::free_outside, "address"_a)
      .def("serve_torch", [](CudaDevice& device) { cuda::serve_torch(&device); });
}

}  // namespace

void bind_cuda(nb::module_& module) {
  module.def("cuda_probe", &probe);
  module.def("cuda_allocate_beside", &cuda::allocate_beside, "wanted"_a);
  module.def("cuda_raise_told", [](const std::string& words) { cuda::raise_told(words); }, "words"_a);
  module.def("cuda_take_refusal", [] {
    const cuda::Refusal refusal = cuda::take_refusal();
    return std::make_tuple(refusal.needed_bytes, refusal.grantable_bytes);
  });
  module.def("cuda_end_torch", [] { cuda::serve_torch(nullptr); });
  module.def("cuda_serve_address", [] { return reinterpret_cast<std::uint64_t>(&tensile_cuda_serve); });
  module.attr("CUDA_CHUNK_BYTES") = CudaDevice::default_chunk_bytes;
  bind_broker(module);
  bind_regions(module);
  bind_cuda_device(module);
}

}  // namespace tensile::bindings
