//! farmem's packets beside somebody else's: the vectors in testdata, and scapy itself.

mod scapy;
mod vector_file;
mod vectors;
