/* The files of weights that `rpc-server --cache` keeps, in place of llama.cpp's reading and writing of them.

   llama.cpp names a file by the hash of what is in it, writes it in place, and believes whatever it reads: a file that was
   cut off by a full disk, is being written by another process, or has rotted gives a model other weights without a
   word. Here a file is what its name says, or it is not there: it is written beside its place and moved there when it is
   whole, and its hash is compared when it is read.

   rpc.cpp includes ggml-rpc.cpp with this namespace for `std`. */
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <condition_variable>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <thread>
#include <unistd.h>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace foredraft_std {

using namespace std;

/* What was read last and is what its name says. A process serves one client, from one thread. */
inline std::vector<char> & kept_content() {
    static auto & content = *new std::vector<char>();
    return content;
}

/* llama.cpp's hash, as it writes it into a file's name. */
inline std::string kept_name(const char * data, size_t size) {
    uint64_t hash = 0xcbf29ce484222325ULL;
    for (size_t i = 0; i < size; ++i) hash = (hash ^ uint8_t(data[i])) * 0x100000001b3ULL;
    char name[17];
    snprintf(name, sizeof name, "%016" PRIx64, hash);
    return name;
}

namespace filesystem {

using namespace std::filesystem;

/* Whether there is a file and it is what its name says; it is then in `kept_content`. */
inline bool exists(const path & file, std::error_code &) {
    auto & content = kept_content();
    content.clear();
    std::ifstream from(file, std::ios::binary | std::ios::ate);
    if (!from) return false;
    content.resize(size_t(std::max<std::streamoff>(from.tellg(), 0)));
    from.seekg(0);
    if (from.read(content.data(), std::streamsize(content.size())) &&
        kept_name(content.data(), content.size()) == file.filename().string()) return true;
    content.clear();
    return false;
}

} // namespace filesystem

/* Reads what `exists` has read. */
class ifstream {
  public:
    ifstream(const std::filesystem::path &, std::ios::openmode) {}
    void seekg(std::streamoff, std::ios::seekdir) {}
    size_t tellg() const { return kept_content().size(); }
    void read(char * to, size_t size) {
        memcpy(to, kept_content().data(), std::min(size, kept_content().size()));
        std::vector<char>().swap(kept_content());
    }
};

/* Writes a whole file, or none. */
class ofstream {
  public:
    ofstream(const std::filesystem::path & file, std::ios::openmode) : file(file) {}
    void write(const char * data, size_t size) {
        const std::string beside = file.string() + "." + std::to_string(getpid());
        FILE * to = fopen(beside.c_str(), "wb");
        const bool written = to && fwrite(data, 1, size, to) == size && !fflush(to);
        int error = errno;
        if (to && fclose(to) && written) error = errno;
        else if (written && !rename(beside.c_str(), file.c_str())) return;
        else if (written) error = errno;
        unlink(beside.c_str());
        static bool told = false;
        if (!told) fprintf(stderr, "Weights are not kept in %s: %s.\n", file.parent_path().c_str(), strerror(error));
        told = true;
    }

  private:
    const std::filesystem::path file;
};

} // namespace foredraft_std
