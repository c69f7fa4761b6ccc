// The two configuration files of a run folder. asked.toml is what the user asked for: the file and --set,
// before anything was derived or prepared; it is read to go on, and judged as any configuration. config.toml
// is a record of what was used; whoever reads the run reads it, and nothing judges it.
//
// They are replaced together: the new record is written beside the old one as config.toml.next, then asked.toml
// is replaced, then the record gets its name. Its first lines hold the digest of the asked.toml it belongs to,
// so that whoever reads in between, or after a stop in between, takes the right one.
//
// In both, a relative name lies inside the run folder, wherever that is now; everything else is absolute. So
// a folder can be moved, renamed and copied, and used from any current directory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace pleat::config {

inline constexpr char kRecordName[] = "config.toml";
inline constexpr char kAskedName[] = "asked.toml";
inline constexpr char kNextRecordName[] = "config.toml.next";
// In the folder of an import until it is whole.
inline constexpr char kImportName[] = "IMPORT";
inline constexpr char kRecordHead[] = "# Record of a Pleat run, format 2.";

// The run folder meant by `path`: a folder with an asked.toml, or the config.toml or asked.toml in one. Empty
// where `path` is a file of its own. Throws for a folder without asked.toml.
std::string run_folder_of(const std::string& path);

// As `load`, before validation: what a run started from weights leaves out comes from there first.
Config read_unchecked(const std::string& path, const std::vector<std::string>& sets);

// Text with everything filled in. Keys without effect are kept; only ranges and the model are checked, and
// `asked` stays empty. `sets` as in `load`.
Config parse_record(std::string_view toml_text, const std::vector<std::string>& sets = {},
                    std::string_view source_name = "record");
// config.toml of a run folder, with names good from here. A folder of 0.1.0 or made by hand is read too: names
// in its file are as seen from the current directory, but its checkpoints are those inside it.
Config read_record(const std::string& folder, const std::vector<std::string>& sets = {});

// Names from a run folder's files become names good from here, and the other way round.
Config from_folder(Config config, const std::string& folder);
Config in_folder(Config config, const std::string& folder);
// The same for what a run folder holds: its record, or the one in a checkpoint. Those of 0.1.0 too, whose
// names are as seen from the current directory.
Config placed(Config saved, const std::string& folder);

// The texts of the two files. `asked` and `used` hold names good from here.
std::string asked_text(const Config& asked);
std::string record_text(const Config& prepared, const Config& used, std::string_view asked_toml);

// Writes both files of `used.log.run_dir`, which is there. `prepared` is what was asked, with names of prepared
// data, for the record. After a stop at any moment the two belong together.
void write_run_files(const Config& asked, const Config& prepared, const Config& used);
// Whether a record, config.toml.next, was written for this asked.toml.
bool next_record_counts(std::string_view next_record, std::string_view asked_toml);

// Throws where a text that record_text or asked_text made lacks its end.
void require_whole(std::string_view text, const std::string& path);

}  // namespace pleat::config
