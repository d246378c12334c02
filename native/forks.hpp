// Whether something was made in this process, or in one that it was forked from.
#pragma once

namespace tensile {

// How many forks lie between this process and the one that loaded the library. What notes it when it is made knows
// later whether it is a copy, whose threads, locks and memory are those of the parent.
unsigned forks() noexcept;

}  // namespace tensile
