// Owns the taking aside of standard error: llama.cpp's grammar parser writes its reasons there and nowhere else.
#include <unistd.h>

#include <cstdio>

#include "kvfold.h"

namespace kvfold {

std::string withoutStderr(const std::function<void()> &body) {
  std::fflush(stderr);
  FILE *aside = std::tmpfile();
  int kept = aside == nullptr ? -1 : dup(STDERR_FILENO);
  if (kept < 0 || dup2(fileno(aside), STDERR_FILENO) < 0) {
    if (kept >= 0) close(kept);
    if (aside != nullptr) std::fclose(aside);
    body();
    return "";
  }
  std::exception_ptr failure;
  try {
    body();
  } catch (...) {
    failure = std::current_exception();
  }
  std::fflush(stderr);
  dup2(kept, STDERR_FILENO);
  close(kept);
  std::string said(4096, '\0');
  std::rewind(aside);
  said.resize(std::fread(said.data(), 1, said.size(), aside));
  std::fclose(aside);
  if (failure) std::rethrow_exception(failure);
  return said;
}

}  // namespace kvfold
