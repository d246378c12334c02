#include "cuda/probe.hpp"

#include <array>
#include <cstdio>

namespace tensile::cuda {
namespace {

std::string uuid_of(const Driver& driver, DeviceNumber device, const std::string& purpose) {
  unsigned char bytes[16] = {};
  driver.cuDeviceGetUuid(purpose, &bytes, device);
  std::string written = "GPU";
  for (std::size_t i = 0; i < sizeof(bytes); ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) written += '-';
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", static_cast<unsigned int>(bytes[i]));
    written += digits.data();
  }
  return written;
}

std::uint64_t granularity_of(const Driver& driver, DeviceNumber device, const std::string& purpose) {
  AllocationProperties properties{};
  properties.type = AllocationType::pinned;
  properties.location = {LocationType::device, device};
  std::size_t granularity_bytes = 0;
  driver.cuMemGetAllocationGranularity(purpose, &granularity_bytes, &properties, Granularity::minimum);
  return granularity_bytes;
}

DeviceFacts facts_of(const Driver& driver, int ordinal) {
  const std::string purpose = text("looking at device ", ordinal);
  DeviceNumber device = 0;
  driver.cuDeviceGet(purpose, &device, ordinal);
  std::array<char, 256> name{};
  driver.cuDeviceGetName(purpose, name.data(), static_cast<int>(name.size()), device);
  std::size_t memory_bytes = 0;
  driver.cuDeviceTotalMem(purpose, &memory_bytes, device);
  const auto attribute = [&](Attribute id) {
    int value = 0;
    driver.cuDeviceGetAttribute(purpose, &value, id, device);
    return value;
  };
  const bool virtual_memory = attribute(Attribute::virtual_memory) != 0;
  return {
      .ordinal = ordinal,
      .name = name.data(),
      .uuid = uuid_of(driver, device, purpose),
      .memory_bytes = memory_bytes,
      .capability_major = attribute(Attribute::capability_major),
      .capability_minor = attribute(Attribute::capability_minor),
      .multiprocessors = attribute(Attribute::multiprocessors),
      .clock_khz = attribute(Attribute::clock_khz),
      .memory_clock_khz = attribute(Attribute::memory_clock_khz),
      .memory_bus_bits = attribute(Attribute::memory_bus_bits),
      .copy_engines = attribute(Attribute::copy_engines),
      .virtual_memory = virtual_memory,
      .shareable = virtual_memory && attribute(Attribute::descriptor_handles) != 0,
      .granularity_bytes = virtual_memory ? granularity_of(driver, device, purpose) : 0,
  };
}

}  // namespace

std::vector<DeviceFacts> probe(const Driver& driver) {
  int count = 0;
  driver.cuDeviceGetCount("looking for devices", &count);
  std::vector<DeviceFacts> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) devices.push_back(facts_of(driver, ordinal));
  return devices;
}

}  // namespace tensile::cuda
