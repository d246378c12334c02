#include "cuda/region_listener.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <utility>

#include "cuda/driver.hpp"
#include "fault.hpp"

namespace tensile::cuda {
namespace {

FileDescriptor duplicate(int socket) {
  const int number = ::fcntl(socket, F_DUPFD_CLOEXEC, 0);
  if (number < 0) throw_system_fault("fcntl", "keeping the socket of the broker of regions", errno);
  return FileDescriptor(number);
}

}  // namespace

RegionListener::RegionListener(int socket, std::uint64_t region_count, Apply apply)
    : socket_(duplicate(socket)), region_count_(region_count), apply_(std::move(apply)), thread_([this] { run(); }) {}

RegionListener::~RegionListener() {
  ::shutdown(socket_.number(), SHUT_RDWR);
  thread_.join();
}

void RegionListener::abandon() { thread_.detach(); }

void RegionListener::run() noexcept {
  try {
    while (const std::optional<RegionChange> change = receive_change(socket_.number(), region_count_)) {
      apply_(socket_.number(), *change);
      send_answer(socket_.number(), change_done);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "the regions of the device can no longer change in this process: %s\n", error.what());
    try {
      send_answer(socket_.number(), change_refused);
    } catch (const std::exception&) {
      // The broker has ended, and this process ends too.
    }
    ::shutdown(socket_.number(), SHUT_RDWR);  // nobody answers later changes
  }
}

}  // namespace tensile::cuda
