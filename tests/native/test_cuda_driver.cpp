#include <dlfcn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <string>
#include <variant>

#include "cuda/probe.hpp"
#include "cuda_scene.hpp"

using namespace tensile;
using namespace tensile::cuda;
using namespace cuda_scene;

namespace {

class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Setting() { ::unsetenv(name_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
};

void check_absent(Absent::Why why, const std::string& reason, const std::string& hint,
                  const char* library = driver_library) {
  const auto loaded = Driver::load(library);
  const auto* absent = std::get_if<Absent>(&loaded);
  CHECK(absent != nullptr);
  if (absent == nullptr) return;
  CHECK(absent->why == why);
  CHECK_EQUAL(absent->reason, reason);
  CHECK_EQUAL(absent->hint, hint);
}

}  // namespace

TEST(a_missing_driver_is_reported) {
  check_absent(Absent::Why::no_driver,
               "no CUDA driver: loading libno-such-driver.so.1 failed: libno-such-driver.so.1: cannot open shared "
               "object file: No such file or directory",
               "Install NVIDIA's driver, or start the container with access to it; without a GPU, set device "
               "to cpu.",
               "libno-such-driver.so.1");
}

TEST(a_library_that_is_no_driver_is_distinguished_from_a_missing_driver) {
  check_absent(Absent::Why::broken_driver, "libpthread.so.0 does not say its version (cuDriverGetVersion)",
               "Install NVIDIA's driver again, and one version of it only.", "libpthread.so.0");
  const auto loaded = Driver::load("/proc/self/status");
  const auto* absent = std::get_if<Absent>(&loaded);
  CHECK(absent != nullptr && absent->why == Absent::Why::broken_driver);
}

TEST(a_driver_that_is_too_old_is_refused_with_both_versions) {
  const Setting version("FAKE_CUDA_VERSION", "11040");
  check_absent(Absent::Why::old_driver, "the driver supports CUDA 11.4, and 12.0 is needed",
               "Install NVIDIA's driver 525.60.13 or newer.");
}

TEST(the_oldest_supported_driver_has_every_call) {
  const Setting version("FAKE_CUDA_VERSION", "12000");
  const auto loaded = Driver::load();
  const auto* loaded_driver = std::get_if<std::unique_ptr<const Driver>>(&loaded);
  CHECK(loaded_driver != nullptr && (*loaded_driver)->version() == 12000);
}

TEST(a_driver_without_a_call_is_refused_with_the_calls_name) {
  const Setting lacks("FAKE_CUDA_LACKS", "cuMemSetAccess");
  check_absent(Absent::Why::broken_driver, "libcuda.so.1 supports CUDA 12.8 and lacks cuMemSetAccess of CUDA 10.2",
               "Install NVIDIA's driver again, and one version of it only.");
}

TEST(a_driver_without_a_device_is_reported) {
  const std::string reason = "the CUDA driver sees no GPU";
  const std::string hint = "Look at nvidia-smi and at CUDA_VISIBLE_DEVICES; without a GPU, set device to cpu.";
  {
    const Setting devices("FAKE_CUDA_DEVICES", "0");
    check_absent(Absent::Why::no_device, reason, hint);
  }
  const Setting init("FAKE_CUDA_INIT", "100");
  check_absent(Absent::Why::no_device, reason, hint);
}

TEST(the_error_of_a_driver_that_does_not_start_is_quoted) {
  {
    const Setting init("FAKE_CUDA_INIT", "802");
    check_absent(Absent::Why::refused,
                 "the CUDA driver refuses: cuInit failed: CUDA_ERROR_SYSTEM_NOT_READY (the fake driver's words)",
                 "Look at nvidia-smi; a process that was forked after its parent used CUDA cannot use it.");
  }
  const Setting init("FAKE_CUDA_INIT", "34");
  check_absent(Absent::Why::broken_driver, "libcuda.so.1 is the stub that the CUDA toolkit links to, no driver",
               "Take the toolkit's folder 'stubs' out of LD_LIBRARY_PATH.");
}

TEST(a_result_without_a_name_is_reported_by_its_number) {
  CHECK_EQUAL(driver().words(static_cast<Result>(7777)), "error 7777, which this driver has no name for");
}

TEST(results_are_classified_by_the_cause_of_the_fault) {
  CHECK_FAULT(memory, "copying: cuX failed: CUDA_ERROR_OUT_OF_MEMORY",
              driver().fail("copying", "cuX", Result::out_of_memory));
  CHECK_FAULT(device, "CUDA_ERROR_INVALID_VALUE", driver().fail("copying", "cuX", Result::invalid_value));
  for (const Result lost :
       {Result::deinitialized, Result::device_unavailable, Result::ecc_uncorrectable, Result::contained,
        Result::no_device, Result::mps_client_terminated, Result::system_not_ready, Result::unknown}) {
    CHECK_FAULT(lost, "cuX failed", driver().fail("copying", "cuX", lost));
  }
  for (const Result broken :
       {Result::illegal_address, Result::misaligned_address, Result::device_assert, Result::illegal_instruction,
        Result::launch_failed, Result::launch_timeout, Result::invalid_pc, Result::context_is_destroyed}) {
    CHECK_FAULT(broken, "cuX failed", driver().fail("copying", "cuX", broken));
  }
}

TEST(a_forked_child_is_refused_by_every_call) {
  const Checked checked;
  Scene scene;
  const pid_t child = ::fork();
  if (child == 0) {
    int right = 1;
    try {
      scene.device->done(0);
    } catch (const Fault& fault) {
      right =
          std::string(fault.what()).find("was opened before this process was forked") == std::string::npos ? 2 : 0;
    }
    scene.device.reset();
    const auto loaded = Driver::load();
    const auto* absent = std::get_if<Absent>(&loaded);
    ::_exit(absent == nullptr || absent->why != Absent::Why::refused ? 3 : right);
  }
  int status = -1;
  CHECK_EQUAL(::waitpid(child, &status, 0), child);
  CHECK_EQUAL(status, 0);
}

TEST(the_facts_about_each_device_are_read) {
  const Setting devices("FAKE_CUDA_DEVICES", "2");
  const auto facts = probe(driver());
  CHECK_EQUAL(facts.size(), 2U);
  const DeviceFacts& second = facts.back();
  CHECK_EQUAL(second.ordinal, 1);
  CHECK_EQUAL(second.name, "Fake GPU 1");
  CHECK_EQUAL(second.uuid, "GPU-00112233-4455-6677-8899-aabbccddeeff");
  CHECK_EQUAL(second.memory_bytes, 256 * mib);
  CHECK_EQUAL(second.capability_major * 10 + second.capability_minor, 86);
  CHECK_EQUAL(second.multiprocessors, 10);
  CHECK_EQUAL(second.clock_khz, 1'000'000);
  CHECK_EQUAL(second.memory_clock_khz, 500'000);
  CHECK_EQUAL(second.memory_bus_bits, 256);
  CHECK_EQUAL(second.copy_engines, 2);
  CHECK(second.virtual_memory && second.shareable);
  CHECK_EQUAL(second.granularity_bytes, 2 * mib);
}

TEST(a_failed_query_of_a_device_is_reported_with_the_call) {
  std::set<std::string> named;
  for (std::uint64_t number = 1;; ++number) {
    const Checked checked;
    fake_cuda::fail_call(number, Result::unknown);
    try {
      probe(driver());
      break;
    } catch (const Fault& fault) {
      named.insert(fake_cuda::failed_call());
      CHECK(fault.kind() == Fault::Kind::lost);
      CHECK(std::string(fault.what()).find(fake_cuda::failed_call() + " failed: CUDA_ERROR_UNKNOWN") !=
            std::string::npos);
    }
  }
  CHECK((named == std::set<std::string>{"cuDeviceGet", "cuDeviceGetAttribute", "cuDeviceGetCount", "cuDeviceGetName",
                                        "cuDeviceGetUuid", "cuDeviceTotalMem", "cuMemGetAllocationGranularity"}));
}
