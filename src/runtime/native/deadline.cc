// Ends a process in time after a signal, even while its event loop is blocked. Node handles signals only on the event loop.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <thread>

#include "kvfold.h"

namespace kvfold {
namespace {

constexpr int SIGNALS[] = {SIGTERM, SIGINT};
// Milliseconds that the process has left after a second signal.
constexpr int AT_ONCE = 1000;

struct sigaction before[NSIG];
int ends[2] = {-1, -1};

// Wakes the thread that runs `wait`, then calls Node's own handler.
void onSignal(int signal, siginfo_t *info, void *context) {
  int kept = errno;
  auto byte = static_cast<unsigned char>(signal);
  [[maybe_unused]] auto written = write(ends[1], &byte, 1);
  errno = kept;
  auto &node = before[signal];
  if ((node.sa_flags & SA_SIGINFO) != 0) node.sa_sigaction(signal, info, context);
  else if (node.sa_handler != SIG_DFL && node.sa_handler != SIG_IGN) node.sa_handler(signal);
}

int64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<int64_t>(time.tv_sec) * 1000 + time.tv_nsec / 1'000'000;
}

void wait(int milliseconds) {
  unsigned char signal = 0;
  while (read(ends[0], &signal, 1) != 1) continue;
  int64_t deadline = now() + milliseconds;
  for (int64_t left = milliseconds; left > 0; left = deadline - now()) {
    pollfd heard{ends[0], POLLIN, 0};
    unsigned char again;
    if (poll(&heard, 1, static_cast<int>(left)) > 0 && read(ends[0], &again, 1) == 1) deadline = std::min(deadline, now() + AT_ONCE);
  }
  _exit(128 + signal);
}

// Makes SIGINT and SIGTERM end the process within a number of milliseconds, the only argument. Must be called after Node has added its own
// handlers for the two signals. Later calls do nothing.
Napi::Value endWithin(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    if (ends[0] >= 0) return info.Env().Undefined();
    if (pipe(ends) != 0) throw Failure("native/failed", "The system could not open a pipe; raise the limit of open files (ulimit -n).");
    for (int end : ends) fcntl(end, F_SETFD, FD_CLOEXEC);
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    std::thread(wait, info[0].As<Napi::Number>().Int32Value()).detach();
    for (int signal : SIGNALS) {
      sigaction(signal, nullptr, &before[signal]);
      struct sigaction ours = before[signal];
      ours.sa_flags |= SA_SIGINFO;
      ours.sa_sigaction = onSignal;
      sigaction(signal, &ours, nullptr);
    }
    return info.Env().Undefined();
  });
}

}  // namespace

void exportDeadline(Napi::Env env, Napi::Object exports) { exports.Set("endWithin", Napi::Function::New(env, endWithin)); }

}  // namespace kvfold
