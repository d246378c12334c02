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

// A directory of the test's own, on whatever file system temporary files are.
class Directory {
 public:
  Directory() {
    std::string name = "/tmp/tensile-test-XXXXXX";
    name_ = ::mkdtemp(name.data());
  }
  ~Directory() { ::rmdir(name_.c_str()); }
  const std::string& name() const { return name_; }

  int files() const {
    int count = -2;  // itself and its parent
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

TEST(a_swap_file_gives_back_what_was_written_and_has_no_name) {
  const Directory directory;
  SwapFile file(directory.name());
  SwapFile::Buffer buffer;
  CHECK_EQUAL(directory.files(), 0);
  file.reserve({0, 16 * mib});
  // Larger than the buffer, of whole blocks or not, at any address.
  const std::vector<std::byte> large = pattern(3 * mib + 12'345, 1);
  const std::vector<std::byte> small = pattern(1, 2);
  file.write(0, large.data(), large.size(), buffer);
  file.write(4 * mib, small.data(), small.size(), buffer);
  std::vector<std::byte> found(large.size() + 1);
  file.read(0, found.data() + 1, large.size(), buffer);
  CHECK(std::memcmp(found.data() + 1, large.data(), large.size()) == 0);
  file.read(4 * mib, found.data(), 1, buffer);
  CHECK(found[0] == small[0]);
}

TEST(a_range_that_was_given_back_reads_as_zeros) {
  const Directory directory;
  SwapFile file(directory.name());
  SwapFile::Buffer buffer;
  const std::vector<std::byte> bytes = pattern(2 * mib, 3);
  file.reserve({0, 2 * mib});
  file.write(0, bytes.data(), bytes.size(), buffer);
  file.give_back({mib, mib});
  std::vector<std::byte> found(2 * mib);
  file.read(0, found.data(), found.size(), buffer);
  CHECK(std::memcmp(found.data(), bytes.data(), mib) == 0);
  CHECK(std::vector<std::byte>(found.begin() + mib, found.end()) == std::vector<std::byte>(mib));
}

TEST(a_disk_without_room_is_said_before_anything_is_written) {
  const Directory directory;
  SwapFile file(directory.name());
  CHECK_FAULT(lost, "the swap file in swap_directory '" + directory.name() + "'", file.reserve({0, std::uint64_t{1} << 52}));
}

TEST(a_directory_that_takes_no_files_is_named) {
  CHECK_FAULT(device, "no swap file can be made in swap_directory '/nowhere'", SwapFile("/nowhere"));
}
