// The communication contract: what the ranks of a group say to each other, whatever carries it.
//
// A Communicator is one rank's end of one group. Its calls are blocking or enqueued, all alike: the ranks meet on the
// host or on the device (program/meeting.h).
//
// A blocking call (threads, MPI) holds the calling thread until this rank's part is done: its output is
// complete and its input may be overwritten. Asynchrony comes from running lanes as threads:
// - different communicators of a rank may be used from different threads at the same time;
// - the collectives of one communicator must be called one after the other, on every rank of the group in the
//   same order (from whichever thread); send, receive and send_receive of one communicator may run beside
//   them and beside each other as long as two of them at a time differ in peer or tag.
// A collective may return before other ranks have theirs; only barrier says that all have come. send may
// return before the receiver has come, but may also wait for it: never rely on either.
//
// An enqueued call (NCCL) returns when it stands in the order of the stream the group was opened for: what was
// put on that stream before runs before it, what is put there later behind it. Buffers belong to the call until
// the stream has done it; counts and offsets may go at once. The calling thread hears of failures later: whoever
// waits for the stream asks `watch` meanwhile. All ranks put the calls of all their groups on in one order.
//
// Reductions have one order: element by element, ((r0 + r1) + r2) + ... by ascending rank in the group. Sums
// of f32 are carried in f64 and rounded once at the end, of bf16 in f32; f64 in f64; integers modulo 2^n. A
// NaN of any rank makes Max and Min NaN; of equal values (0 and -0) the lowest rank's is taken. Every rank
// gets the same bits, they do not depend on timing, and they are the same over threads and over MPI (unless
// Options::mpi_native). Such groups are ordered. NCCL's are native: order and carry type of sums are the
// library's (comm/nccl/nccl_group.h).
//
// A rank with nothing to say (zero bytes) makes the same calls and takes the same path.
//
// Every call names its stage. Operation, stage, sequence number in the group and shape hash are kept in the
// rank's flight recorder (flight.h); Options::check compares them across the group before each collective and
// throws on the first difference; a call that does not end is reported by the watchdog (watchdog.h).
//
// Errors are base::Error: wrong arguments and calls that do not match (BadInput, on every rank of the group
// that can see it), a failed rank while waiting (Retry, naming it). After an error the group is not usable. A
// rank with several threads in calls uses abort, so that one thread's error ends the waiting of the others.
#pragma once

#include <memory>
#include <vector>

#include "comm/flight.h"
#include "comm/options.h"
#include "program/meeting.h"

namespace pleat::comm {

using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

class Communicator {
 public:
  static constexpr int kMaxTag = 30000;

  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }  // position in the group
  int size() const { return static_cast<int>(world_ranks_.size()); }
  const std::string& name() const { return name_; }
  std::span<const int> world_ranks() const { return world_ranks_; }

  // out = reduction over ranks of in; equal sizes on all ranks. in and out may be the same memory.
  void all_reduce(std::string_view stage, Bytes in, MutableBytes out, tensor::Dtype dtype, Reduce reduce);
  // in is cut into parts in rank order; out = reduction over ranks of my part. Equal parts, or `counts`
  // elements (not bytes) per rank. out may be my part of in.
  void reduce_scatter(std::string_view stage, Bytes in, MutableBytes out, tensor::Dtype dtype, Reduce reduce);
  void reduce_scatter_v(std::string_view stage, Bytes in, MutableBytes out, std::span<const int64_t> counts,
                        tensor::Dtype dtype, Reduce reduce);
  // out = the ranks' inputs one after the other. Equal sizes, or `counts` bytes per rank. in may be my part
  // of out.
  void all_gather(std::string_view stage, Bytes in, MutableBytes out);
  void all_gather_v(std::string_view stage, Bytes in, MutableBytes out, std::span<const int64_t> counts);
  // Part r of in goes to rank r; part r of out comes from rank r; counts and offsets in bytes. in and out
  // must not overlap, parts of out must not overlap each other.
  void all_to_all_v(std::string_view stage, Bytes in, Parts send, MutableBytes out, Parts receive);
  // in goes to the next rank, out comes from the previous one; the last rank's next is the first. All at
  // once: nobody's turn depends on another's buffer. Equal sizes; in and out must not overlap.
  void shift(std::string_view stage, Bytes in, MutableBytes out);
  // data of `root` to all.
  void broadcast(std::string_view stage, MutableBytes data, int root);
  // An enqueued one sets the byte `met` (of the device, may be absent) to 1 when all have come, to 0 if that was called off.
  void barrier(std::string_view stage, MutableBytes met = {});

  // Messages between two ranks, matched by tag (0 to kMaxTag), in order per (sender, receiver, tag); sizes
  // must agree.
  void send(std::string_view stage, int to, int tag, Bytes data);
  void receive(std::string_view stage, int from, int tag, MutableBytes data);
  // Both at once, as a ring needs; to and from may be this rank itself (then both).
  void send_receive(std::string_view stage, int to, Bytes out_going, int from, MutableBytes in_coming,
                    int tag);

  // This rank has failed, says one of its threads: calls of its other threads end with an error, and the
  // other ranks are told. Of the whole world, not of this group alone; the first reason counts. Any thread.
  virtual void abort(const std::string& why);

  virtual program::Meeting meeting() const { return program::Meeting::OnHost; }
  // Enqueued groups: the messages between the two are one call, whose parts wait for nobody but their peers. Others make
  // them one by one.
  virtual void begin_messages() {}
  virtual void end_messages() {}
  // How far the enqueued calls are, without waiting; true: all are done. Throws when the group has failed (Retry,
  // naming rank, call and stage). Any thread.
  virtual bool watch() { return true; }
  // Calls made while the stream is captured into a graph are not under way. `captured` gives those made since it
  // was asked last a number; `launched` says, right before it happens, that the graph that holds them is launched.
  virtual int captured();
  virtual void launched(int captured);
  // Memory of the device that what carries the group has taken for it so far, measured; 0 where it takes none.
  virtual int64_t device_bytes() const { return 0; }

  // The same for typed memory.
  template <class T>
  void all_reduce(std::string_view stage, std::span<T> values, Reduce reduce) {
    all_reduce(stage, std::as_bytes(values), std::as_writable_bytes(values), tensor::DtypeOf<T>::value,
               reduce);
  }

 protected:
  // `flight` outlives the communicator.
  Communicator(std::string name, std::vector<int> world_ranks, int rank, RankFlight& flight,
               Inject inject = {});

  // One call whose arguments are already checked. A blocking one ends before the caller's memory may be touched
  // again, also when it throws.
  virtual void execute(const Call& call) = 0;
  // Executes it and keeps `entry` in the recorder for as long as it is under way.
  virtual void record(const Call& call, const FlightEntry& entry);
  RankFlight& flight() const { return flight_; }
  uint64_t next_sequence(Operation operation);

 private:
  void record_and_execute(Call& call);
  void reduce_scatter_parts(std::string_view stage, Bytes in, MutableBytes out,
                            std::span<const int64_t> bytes, tensor::Dtype dtype, Reduce reduce);
  void all_gather_parts(std::string_view stage, Bytes in, MutableBytes out, std::span<const int64_t> bytes);

  std::string name_;
  std::vector<int> world_ranks_;
  int rank_;
  uint64_t group_hash_;
  RankFlight& flight_;
  Inject inject_;
  std::atomic<uint64_t> next_collective_{0}, next_message_{0};
};

// Where the buffers of a group's calls lie. Device: memory of one GPU that all its ranks use.
enum class Buffers : uint8_t { Host, Device };

class SharedWindows;  // comm/windows/windows.h
// A group as a rank asks for it; the fields are the arguments of Endpoint::group.
struct WantedGroup {
  std::string name;
  std::vector<int> ranks;
  void* stream = nullptr;
};

// One rank's door to the others: makes its end of any group.
class Endpoint {
 public:
  virtual ~Endpoint() = default;
  virtual int rank() const = 0;  // in the world
  virtual int size() const = 0;
  // Ranks of the world that are threads of this process, this one included.
  virtual int num_in_process() const { return 1; }
  // Every rank in `ranks` makes the same call; ranks (of the world, in group order) must contain this rank.
  // Two groups of one name must not overlap unless they are the same. May wait for the other members. Throws
  // where it cannot carry such buffers. `stream`: of the lane whose calls these are (a cudaStream_t), there
  // as long as calls are made; carriers whose calls are enqueued put them there, others need none. Where groups
  // meet on the device, all ranks of the world call it together, as `groups`.
  virtual std::unique_ptr<Communicator> group(const std::string& name, std::span<const int> ranks,
                                              Buffers buffers = Buffers::Host, void* stream = nullptr) = 0;
  // Windows between `ranks`, all of which make the same calls. Why they cannot have any; "": they can.
  virtual std::string why_no_windows(std::span<const int> ranks, Buffers buffers);
  // `memory`: this rank's, with a header in front. Threads keep it as long as one of them has the result. Throws where
  // ranks cannot have any.
  virtual std::unique_ptr<SharedWindows> share_windows(std::span<const int> ranks, Buffers buffers,
                                                       const std::shared_ptr<std::byte>& memory);
  // A group whose calls are meetings about these windows, blocking or enqueued as its groups are.
  virtual std::unique_ptr<Communicator> window_group(const std::string& name, std::span<const int> ranks,
                                                     SharedWindows& windows, Buffers buffers, void* stream);
  // Several at once, in the order asked for. Where groups meet on the device, all ranks of the world call this
  // together, also one that asks for none; what they ask for may differ, as between stages of a pipeline.
  virtual std::vector<std::unique_ptr<Communicator>> groups(std::span<const WantedGroup> wanted,
                                                            Buffers buffers);
  // Memory of the device taken for the world itself, beside that of its groups, measured.
  virtual int64_t device_bytes() const { return 0; }
  // Of groups with such buffers: how the ranks of this run meet.
  virtual program::Meeting meeting(Buffers) const { return program::Meeting::OnHost; }
};

uint64_t group_hash(std::string_view name, std::span<const int> world_ranks);

}  // namespace pleat::comm
