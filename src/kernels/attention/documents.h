// The documents of a microbatch as a list for cuDNN, made on the device from doc_start.
//
// How many there are is known to the device alone, while a plan is made for a fixed number. So a list has
// room for `max_documents`; where a microbatch has more of them, or doc_start does not describe documents
// (row i sees from i on or from where row i - 1 sees), the list is empty and `listed` 0: the own kernels,
// which skip their work when it is 1, follow in the stream. Nothing waits for the host.
#pragma once

#include <cstddef>

#include "kernels/attention/attention.h"

struct CUstream_st;

namespace pleat::kernels::attention {

// Addresses on the device. Offsets count elements of their rows and have one more entry than there is room
// for.
struct DocumentList {
  int32_t* listed = nullptr;   // first in memory. 1: the list holds all rows
  int32_t* lengths = nullptr;  // behind the last document: zero
  int64_t* qkv_at = nullptr;
  int64_t* out_at = nullptr;
  int64_t* stats_at = nullptr;
};

// Room for documents of 512 rows on average beside the last one of each sequence: more room would only be
// empty blocks in every launch, and shorter documents are little work for any kernel.
constexpr int64_t max_documents(int64_t rows, int64_t seq_len) { return rows / seq_len + rows / 512; }

constexpr int64_t kDocumentListAlignment = 256;  // of its parts
constexpr int64_t document_list_bytes(int64_t max_documents) {
  constexpr int64_t kAlign = kDocumentListAlignment;
  const auto rounded = [](int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; };
  return kAlign + rounded(4 * max_documents) + 3 * rounded(8 * (max_documents + 1));
}
DocumentList document_list_at(std::byte* memory, int64_t max_documents);

// Enqueues on `stream`. Documents longer than seq_len are not listed.
void list_documents(const AttentionShape& shape, int64_t seq_len, int64_t max_documents,
                    const int32_t* doc_start, const DocumentList& to, CUstream_st* stream);

}  // namespace pleat::kernels::attention
