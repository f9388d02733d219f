/* What the files here share: hosts by their endpoints, and what llama.cpp's RPC protocol replies. */
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace foredraft {

constexpr uint8_t HELLO = 14; // the number of the greeting, in every version

/* How this process serves: the socket that listens, the file that is told who connected, and whether all devices are
   processors. */
struct Serving {
    int listens = -1, tells = -1;
    bool on_processors = false;
};

void set_patience(int milliseconds);
void serve_with(const Serving & settings);
void expect_frames(const std::string & endpoint, bool expected);
const char * why_lost(const std::string & endpoint);

uint64_t size_of_reply(uint8_t command, const void * request, size_t size);
void empty_reply(uint8_t command, void * data, size_t size);
std::string fault_of_reply(uint8_t command, const void * data, size_t size);

} // namespace foredraft
