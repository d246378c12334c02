#include "descriptors.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "fault.hpp"

namespace tensile {
namespace {

// The byte sent with the descriptors: a message that carries descriptors needs at least one byte of data.
constexpr std::byte companion{'d'};

// Space for a control message with the most descriptors that one message can carry, aligned as its header requires.
struct alignas(cmsghdr) Control {
  std::array<std::byte, CMSG_SPACE(max_descriptors * sizeof(int))> bytes{};
};

[[noreturn]] void throw_socket_fault(const char* call, const std::string& purpose, ssize_t done) {
  const int error_number = done == 0 ? ECONNRESET : errno;
  if (error_number == EPIPE || error_number == ECONNRESET || error_number == EAGAIN) {
    const char* failure = error_number == EAGAIN ? "does not answer" : "closed the socket";
    throw Fault(Fault::Kind::device, text(purpose, ": the other process ", failure),
                "Look why that process ended or hangs; this process cannot continue.");
  }
  throw_system_fault(call, purpose, error_number);
}

void check_count(std::size_t count) {
  if (count == 0 || count > max_descriptors) {
    throw Fault(Fault::Kind::invariant,
                text("a message of ", count, " descriptors: between 1 and ", max_descriptors, " are possible"));
  }
}

// Repeat a system call that a signal handler has interrupted.
template <typename Operation>
ssize_t retried(Operation operation) {
  ssize_t done = -1;
  do {
    done = operation();
  } while (done < 0 && errno == EINTR);
  return done;
}

// Take ownership of all descriptors in a message, including those beyond the number that the caller expects.
std::vector<FileDescriptor> taken(msghdr& message) {
  std::vector<FileDescriptor> descriptors;
  descriptors.reserve(max_descriptors);
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      descriptors.emplace_back(number);
    }
  }
  return descriptors;
}

}  // namespace

void send_descriptors(int socket, std::span<const int> descriptors) {
  check_count(descriptors.size());
  Control control;
  std::byte byte = companion;
  iovec data{&byte, 1};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
  std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  const ssize_t sent = retried([&] { return ::sendmsg(socket, &message, MSG_NOSIGNAL); });
  if (sent <= 0) throw_socket_fault("sendmsg", text("handing over ", descriptors.size(), " descriptors"), sent);
}

std::vector<FileDescriptor> receive_descriptors(int socket, std::size_t count) {
  check_count(count);
  Control control;
  std::byte byte{};
  iovec data{&byte, 1};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  const ssize_t received = retried([&] { return ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC); });
  if (received <= 0) throw_socket_fault("recvmsg", text("taking over ", count, " descriptors"), received);
  std::vector<FileDescriptor> descriptors = taken(message);
  if (descriptors.size() != count || (message.msg_flags & MSG_CTRUNC) != 0) {
    throw Fault(Fault::Kind::device, text("taking over descriptors: ", descriptors.size(), " of ", count, " arrived"),
                "Raise the limit on open files (ulimit -n).");
  }
  return descriptors;
}

void send_bytes(int socket, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = retried([&] { return ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL); });
    if (sent <= 0) throw_socket_fault("send", text("sending ", bytes.size(), " bytes"), sent);
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
}

void receive_bytes(int socket, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t received = retried([&] { return ::recv(socket, bytes.data(), bytes.size(), 0); });
    if (received <= 0) throw_socket_fault("recv", text("receiving ", bytes.size(), " bytes"), received);
    bytes = bytes.subspan(static_cast<std::size_t>(received));
  }
}

}  // namespace tensile
