#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "check.hpp"
#include "fault.hpp"
#include "swap_file.hpp"

using namespace tensile;

namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

// A temporary directory for one test.
class Directory {
 public:
  Directory() {
    std::string name = "/tmp/tensile-test-XXXXXX";
    name_ = ::mkdtemp(name.data());
  }
  ~Directory() { ::rmdir(name_.c_str()); }
  const std::string& name() const { return name_; }

  int files() const {
    int count = -2;  // do not count "." and ".."
    DIR* entries = ::opendir(name_.c_str());
    while (::readdir(entries) != nullptr) ++count;
    ::closedir(entries);
    return count;
  }

 private:
  std::string name_;
};

std::vector<std::byte> pattern(std::size_t size_bytes, std::size_t seed) {
  std::vector<std::byte> bytes(size_bytes);
  for (std::size_t i = 0; i < size_bytes; ++i) bytes[i] = static_cast<std::byte>((i * 31 + seed) % 251);
  return bytes;
}

}  // namespace

TEST(a_swap_file_returns_the_written_bytes_and_has_no_name) {
  const Directory directory;
  SwapFile file(directory.name());
  SwapFile::Buffer buffer;
  CHECK_EQUAL(directory.files(), 0);
  file.reserve({0, 16 * mib});
  // The data is larger than the buffer or smaller than a block, and is not aligned.
  const std::vector<std::byte> large = pattern(3 * mib + 12'345, 1);
  const std::vector<std::byte> small = pattern(1, 2);
  file.write(0, large.data(), large.size(), buffer);
  file.write(4 * mib, small.data(), small.size(), buffer);
  std::vector<std::byte> contents(large.size() + 1);
  file.read(0, contents.data() + 1, large.size(), buffer);
  CHECK(std::memcmp(contents.data() + 1, large.data(), large.size()) == 0);
  file.read(4 * mib, contents.data(), 1, buffer);
  CHECK(contents[0] == small[0]);
}

TEST(a_released_range_reads_as_zeros) {
  const Directory directory;
  SwapFile file(directory.name());
  SwapFile::Buffer buffer;
  const std::vector<std::byte> bytes = pattern(2 * mib, 3);
  file.reserve({0, 2 * mib});
  file.write(0, bytes.data(), bytes.size(), buffer);
  file.give_back({mib, mib});
  std::vector<std::byte> contents(2 * mib);
  file.read(0, contents.data(), contents.size(), buffer);
  CHECK(std::memcmp(contents.data(), bytes.data(), mib) == 0);
  CHECK(std::vector<std::byte>(contents.begin() + mib, contents.end()) == std::vector<std::byte>(mib));
}

TEST(a_full_disk_is_reported_before_the_first_write) {
  const Directory directory;
  SwapFile file(directory.name());
  CHECK_FAULT(lost, "the swap file in swap_directory '" + directory.name() + "'",
              file.reserve({0, std::uint64_t{1} << 52}));
}

TEST(a_directory_that_accepts_no_files_is_reported) {
  CHECK_FAULT(device, "no swap file can be made in swap_directory '/nowhere'", SwapFile("/nowhere"));
}
