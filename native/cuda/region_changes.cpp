#include "cuda/region_changes.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <span>

#include "descriptors.hpp"
#include "fault.hpp"

namespace tensile::cuda {
namespace {

struct ChangeHeader {
  std::uint64_t kind;
  std::uint64_t count;
};

// Wait until data arrive. False if the peer has closed the socket.
bool wait_for_data(int socket) {
  std::byte first{};
  ssize_t received = -1;
  do {
    received = ::recv(socket, &first, 1, MSG_PEEK);
  } while (received < 0 && errno == EINTR);
  return received > 0;
}

}  // namespace

void send_change(int socket, const RegionChange& change) {
  const ChangeHeader header{static_cast<std::uint64_t>(change.kind), change.regions.size()};
  send_bytes(socket, std::as_bytes(std::span(&header, 1)));
  send_bytes(socket, std::as_bytes(std::span(change.regions)));
}

std::optional<RegionChange> receive_change(int socket, std::uint64_t region_count) {
  if (!wait_for_data(socket)) return std::nullopt;
  ChangeHeader header{};
  receive_bytes(socket, std::as_writable_bytes(std::span(&header, 1)));
  const auto kind = static_cast<ChangeKind>(header.kind);
  if ((kind != ChangeKind::add && kind != ChangeKind::remove) || header.count > region_count) {
    throw Fault(Fault::Kind::invariant, text("a change of kind ", header.kind, " for ", header.count,
                                             " regions of a device that has ", region_count));
  }
  RegionChange change{kind, std::vector<std::uint64_t>(header.count)};
  receive_bytes(socket, std::as_writable_bytes(std::span(change.regions)));
  return change;
}

void send_answer(int socket, std::byte answer) { send_bytes(socket, std::span(&answer, 1)); }

void receive_answer(int socket) {
  std::byte answer{};
  receive_bytes(socket, std::span(&answer, 1));
  if (answer == change_refused) {
    throw Fault(Fault::Kind::device, "the trainer cannot map or unmap regions of the device",
                "The trainer's log has the driver's error.");
  }
}

}  // namespace tensile::cuda
