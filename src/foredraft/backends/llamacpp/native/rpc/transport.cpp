/* The connections of llama.cpp's RPC backend, in place of its own (transport.h has the interface).

   llama.cpp ends the process when a host is lost. Here a lost connection goes on as if: what is sent goes nowhere, and
   what is read is a reply of the right size without content. Foredraft asks after each forward whether a host was lost
   (`foredraft_rpc_lost`), drops what was computed, and the process lives on.

   A host that stops without closing the connection has to be noticed, too, while a long computation is no reason to give
   up. Between two Foredrafts a server that computes says so every two seconds: what it sends is divided into frames, each
   with its size before it, and an empty one is such a sign of life. They agree on that in the greeting, in bytes that
   llama.cpp has for other transports and leaves empty on TCP. */
#include "transport.h"
#include "rpc.h"
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <set>
#include <string>
#include <sys/socket.h>
#include <sys/uio.h>
#include <thread>
#include <unistd.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 // macOS: SO_NOSIGPIPE
#endif

namespace foredraft {

static std::atomic<int> patience_ms{15000};
static constexpr int CONNECT_MS = 5000, SIGN_OF_LIFE_MS = 2000;
static constexpr uint8_t MARK[] = {'f', 'o', 'r', 'e', 'd', 'r', 'a', 'f', 't', 1};
/* The mark and the version of the frames; the byte after it says whether the server computes on processors only. */
static constexpr size_t ON_PROCESSORS = sizeof MARK;

static std::mutex mutex_of_names;
static std::map<std::string, const std::string *> lost_hosts;
static std::set<std::string> reasons; // of all that were lost: a text stays where it is
static std::map<std::string, bool> hosts_with_frames;
static Serving serving;

void set_patience(int milliseconds) { patience_ms = milliseconds; }
void serve_with(const Serving & settings) { serving = settings; }

void expect_frames(const std::string & endpoint, bool expected) {
    std::lock_guard<std::mutex> lock(mutex_of_names);
    hosts_with_frames[endpoint] = expected;
}

static bool are_frames_expected(const std::string & endpoint) {
    std::lock_guard<std::mutex> lock(mutex_of_names);
    const auto found = hosts_with_frames.find(endpoint);
    return found != hosts_with_frames.end() && found->second;
}

/* Null while a host is connected; else why it no longer is. The text is valid for ever. */
const char * why_lost(const std::string & endpoint) {
    std::lock_guard<std::mutex> lock(mutex_of_names);
    const auto found = lost_hosts.find(endpoint);
    return found == lost_hosts.end() || found->second->empty() ? nullptr : found->second->c_str();
}

static void set_lost(const std::string & endpoint, const std::string & reason) {
    std::lock_guard<std::mutex> lock(mutex_of_names);
    lost_hosts[endpoint] = &*reasons.insert(reason).first;
}

static bool is_marked(const uint8_t * caps) { return !memcmp(caps, MARK, sizeof MARK); }

static void prepare(int fd, bool is_client) {
    const int on = 1, seconds = 5, probes = 3;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
#ifdef TCP_KEEPIDLE
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
#endif
#ifdef TCP_KEEPINTVL
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
#endif
#ifdef TCP_USER_TIMEOUT
    // Not a client's: a server that computes for longer, and reads nothing meanwhile, would be given up.
    const unsigned unanswered = 15000;
    if (!is_client) setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered, sizeof unanswered);
#endif
#ifdef SO_NOSIGPIPE
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
}

/* Whether the connection succeeded within CONNECT_MS. */
static bool connects(int fd, const addrinfo & to) {
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    if (::connect(fd, to.ai_addr, to.ai_addrlen) && errno != EINPROGRESS) return false;
    pollfd wanted{fd, POLLOUT, 0};
    int error = 0;
    socklen_t size = sizeof error;
    int ready;
    do {
        ready = poll(&wanted, 1, CONNECT_MS);
    } while (ready < 0 && errno == EINTR);
    if (ready != 1) return false;
    return !getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) && !error;
}

/* `name`: of a host, perhaps with the number of the connection behind it (rpc.cpp). */
static int connected(const char * name, int port) {
    const std::string host(name, strcspn(name, "#"));
    addrinfo hints{}, * found = nullptr;
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found)) return -1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && !connects(fd, *found)) {
        close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    if (fd >= 0) prepare(fd, true);
    return fd;
}

} // namespace foredraft

using namespace foredraft;

struct socket_t::impl {
    impl(int fd, std::string endpoint) : fd(fd), endpoint(std::move(endpoint)) {}
    ~impl();
    bool send_data(const void * data, size_t size);
    bool recv_data(void * data, size_t size);
    void agree(const uint8_t * caps);
    void lose(const std::string & reason);

    const int fd;
    const std::string endpoint; // of a client's connection; empty in a server
    bool greeted_by_foredraft = false;

  private:
    bool is_client() const { return !endpoint.empty(); }
    bool write_whole(const void * data, size_t size, bool with_header);
    bool read_raw(void * data, size_t size);
    bool read_framed(void * data, size_t size);
    bool hear();
    void follow(const void * data, size_t size);
    void answer(void * data, size_t size);
    void check_reply(void * data, size_t size);
    void live();

    bool framed = false, lost = false;
    uint8_t header[4];
    size_t header_read = 0, frame_left = 0;

    // A client: which part of a command is sent next (its number, its size, what belongs to it), and of a reply read.
    int part_sent = 0, part_read = 0;
    uint8_t command = 0;
    uint64_t reply_size = 0;

    // A server that computes.
    std::thread signs;
    std::mutex writing;
    std::condition_variable woken;
    bool computes = false, ends = false;
};

socket_t::impl::~impl() {
    {
        std::lock_guard<std::mutex> lock(writing);
        ends = true;
    }
    woken.notify_all();
    if (signs.joinable()) signs.join();
    if (fd >= 0) close(fd);
}

void socket_t::impl::lose(const std::string & reason) {
    if (lost) return;
    lost = true;
    set_lost(endpoint, reason);
    if (fd >= 0) shutdown(fd, SHUT_RDWR);
}

/* A server's signs of life, from the greeting to the end of the connection. */
void socket_t::impl::live() {
    std::unique_lock<std::mutex> lock(writing);
    while (!ends) {
        if (woken.wait_for(lock, std::chrono::milliseconds(SIGN_OF_LIFE_MS), [this] { return ends; })) return;
        static const uint8_t empty[4] = {0, 0, 0, 0};
        if (!computes) continue;
        // Where there is no room, the client has enough to read; where there was some, the rest has to follow.
        const ssize_t sent = send(fd, empty, sizeof empty, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0 && size_t(sent) < sizeof empty && !write_whole(empty, sizeof empty - size_t(sent), false)) return;
    }
}

void socket_t::impl::agree(const uint8_t * caps) {
    if (!is_marked(caps) || (is_client() && !are_frames_expected(endpoint))) return;
    framed = true;
    if (!is_client()) signs = std::thread([this] { live(); });
}

/* Read what a server sends while the client sends: signs of life only. */
bool socket_t::impl::hear() {
    const ssize_t n = recv(fd, header + header_read, sizeof header - header_read, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (n <= 0) return false;
    header_read += size_t(n);
    if (header_read < sizeof header) return true;
    header_read = 0;
    return !header[0] && !header[1] && !header[2] && !header[3];
}

bool socket_t::impl::write_whole(const void * data, size_t size, bool with_header) {
    uint8_t before[4] = {uint8_t(size), uint8_t(size >> 8), uint8_t(size >> 16), uint8_t(size >> 24)};
    size_t done = 0;
    const size_t first = with_header ? sizeof before : 0;
    while (done < first + size) {
        iovec parts[2] = {{before + std::min(done, first), first - std::min(done, first)}, {}};
        const size_t at = done > first ? done - first : 0;
        parts[1] = {const_cast<char *>(static_cast<const char *>(data)) + at, std::min(size - at, MAX_CHUNK_SIZE)};
        msghdr message{};
        message.msg_iov = parts;
        message.msg_iovlen = 2;
        const ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL | (is_client() ? MSG_DONTWAIT : 0));
        if (n >= 0) {
            done += size_t(n);
            continue;
        }
        if (errno == EINTR) continue;
        if (errno != EAGAIN || !is_client()) return false;
        pollfd wanted{fd, short(POLLOUT | (framed ? POLLIN : 0)), 0};
        const int ready = poll(&wanted, 1, framed ? patience_ms.load() : -1);
        if (ready == 0) {
            errno = ETIMEDOUT;
            return false;
        }
        if (ready > 0 && framed && (wanted.revents & POLLIN) && !hear()) return false;
    }
    return true;
}

bool socket_t::impl::read_raw(void * data, size_t size) {
    size_t done = 0;
    while (done < size) {
        if (is_client()) {
            pollfd wanted{fd, POLLIN, 0};
            const int ready = poll(&wanted, 1, framed || command == HELLO ? patience_ms.load() : -1);
            if (ready == 0) {
                errno = ETIMEDOUT;
                return false;
            }
        }
        const ssize_t n = recv(fd, static_cast<char *>(data) + done, std::min(size - done, MAX_CHUNK_SIZE), 0);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n == 0) errno = ECONNRESET;
        if (n <= 0) return false;
        done += size_t(n);
    }
    return true;
}

bool socket_t::impl::read_framed(void * data, size_t size) {
    char * to = static_cast<char *>(data);
    while (size) {
        while (!frame_left) {
            if (!read_raw(header + header_read, sizeof header - header_read)) return false;
            header_read = 0;
            frame_left = header[0] | size_t(header[1]) << 8 | size_t(header[2]) << 16 | size_t(header[3]) << 24;
        }
        const size_t now = std::min(size, frame_left);
        if (!read_raw(to, now)) return false;
        to += now, size -= now, frame_left -= now;
    }
    return true;
}

/* Keep track of what a client sends, to know the size of its reply. */
void socket_t::impl::follow(const void * data, size_t size) {
    if (part_sent == 0) command = *static_cast<const uint8_t *>(data);
    if (part_sent == 2) {
        reply_size = size_of_reply(command, data, size);
        part_read = 0;
    }
    part_sent = (part_sent + 1) % 3;
}

static std::string last_error() {
    if (errno == ETIMEDOUT) return "it does not answer";
    if (errno == ECONNRESET || errno == EPIPE) return "it closed the connection";
    return strerror(errno);
}

bool socket_t::impl::send_data(const void * data, size_t size) {
    if (is_client()) {
        if (!lost && !write_whole(data, size, false)) lose(last_error());
        follow(data, size);
        return true;
    }
    std::lock_guard<std::mutex> lock(writing);
    for (size_t at = 0; at < size; at += MAX_CHUNK_SIZE) {
        const size_t now = std::min(size - at, MAX_CHUNK_SIZE);
        if (!write_whole(static_cast<const char *>(data) + at, now, framed)) return false;
    }
    return true;
}

/* A part of the reply of a host that was lost. */
void socket_t::impl::answer(void * data, size_t size) {
    if (part_read == 0) {
        memcpy(data, &reply_size, sizeof reply_size);
    } else {
        empty_reply(command, data, size);
    }
}

/* Lose a host whose reply is no reply to the command. */
void socket_t::impl::check_reply(void * data, size_t size) {
    if (part_read == 0 && memcmp(data, &reply_size, sizeof reply_size)) {
        lose("it is no RPC server, or answers what was not asked");
    } else if (part_read == 1) {
        const std::string fault = fault_of_reply(command, data, size);
        if (!fault.empty()) lose(fault);
    }
}

bool socket_t::impl::recv_data(void * data, size_t size) {
    if (is_client()) {
        if (!lost && !(framed ? read_framed(data, size) : read_raw(data, size))) lose(last_error());
        if (!lost) check_reply(data, size);
        if (lost) answer(data, size);
        part_read = 1;
        return true;
    }
    {
        std::lock_guard<std::mutex> lock(writing);
        computes = false;
    }
    const bool whole = read_raw(data, size);
    if (whole && size == RPC_CONN_CAPS_SIZE && !framed) greeted_by_foredraft |= is_marked(static_cast<uint8_t *>(data));
    std::lock_guard<std::mutex> lock(writing);
    computes = true;
    return whole;
}

socket_t::socket_t(std::unique_ptr<impl> p) : pimpl(std::move(p)) {}
socket_t::~socket_t() = default;
bool socket_t::send_data(const void * data, size_t size) { return pimpl->send_data(data, size); }
bool socket_t::recv_data(void * data, size_t size) { return pimpl->recv_data(data, size); }
bool socket_t::flush() { return true; }
void socket_t::update_caps(const uint8_t * remote) { pimpl->agree(remote); }

void socket_t::get_caps(uint8_t * caps) {
    memset(caps, 0, RPC_CONN_CAPS_SIZE);
    const bool client = !pimpl->endpoint.empty();
    if (client ? !are_frames_expected(pimpl->endpoint) : !pimpl->greeted_by_foredraft) return;
    memcpy(caps, MARK, sizeof MARK);
    caps[ON_PROCESSORS] = !client && serving.on_processors;
}

socket_ptr socket_t::connect(const char * host, int port) {
    const std::string endpoint = std::string(host) + ":" + std::to_string(port);
    const int fd = connected(host, port);
    auto made = std::make_unique<impl>(fd, endpoint);
    set_lost(endpoint, "");
    if (fd < 0) made->lose("it does not accept connections");
    return socket_ptr(new socket_t(std::move(made)));
}

/* A process of ours serves one connection, of a socket that it was given; and then ends. */
socket_ptr socket_t::create_server(const char *, int) {
    return socket_ptr(new socket_t(std::make_unique<impl>(dup(serving.listens), "")));
}

socket_ptr socket_t::accept() {
    static bool served = false;
    if (served) _exit(0);
    sockaddr_in from{};
    socklen_t size = sizeof from;
    int fd;
    do {
        fd = ::accept(pimpl->fd, reinterpret_cast<sockaddr *>(&from), &size);
    } while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));
    if (fd < 0) return nullptr;
    served = true;
    const uint8_t * a = reinterpret_cast<const uint8_t *>(&from.sin_addr);
    dprintf(serving.tells, "%d.%d.%d.%d:%d\n", a[0], a[1], a[2], a[3], ntohs(from.sin_port));
    prepare(fd, false);
    return socket_ptr(new socket_t(std::make_unique<impl>(fd, "")));
}

bool rpc_transport_init() { return true; }
void rpc_transport_shutdown() {}
